"""A pool in virtual time: the real decisions and the real searches, with curves and speeds that you give.

    pool = SimulatedPool(nodes={"a": 8, "b": 8})
    pool.submit(
        searcher={"name": "adaptive_asha", "metric": "loss", "max_trials": 64, "max_length": {"batches": 256}},
        hyperparameters={"lr": {"log": [1e-4, 1e-1]}},
        curve=lambda hparams, length: abs(hparams["lr"] - 0.01) + 1 / length,
        max_slots=8,
    )
    report = pool.run()
    report.makespan_s, report.winners[1], report.slot_s["alice"]

Thousands of slots and trials take seconds. Nothing runs but the decisions: starts, regroups and leaving take the time
that you say. Each run with the same input gives the same report."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from everstep.coordinator.experiments.seam import Candidate
from everstep.coordinator.pool.decisions import decide_pool
from everstep.coordinator.pool.facts import (
    GIVEN,
    PARKING,
    Assignment,
    NodeFacts,
    PoolDecision,
    PoolFacts,
    TrialSpeed,
)
from everstep.coordinator.pool.people import People, Person
from everstep.coordinator.pool.recent_use import RecentUse
from everstep.search.config import read_searcher
from everstep.search.events import CreateTrial, Operation, StopTrial, TrainTo, TrialEnded, Validated
from everstep.search.read_space import read_space
from everstep.search.search import Search
from everstep.wire import trial_job

HParams = Mapping[str, Any]
_DONE = 1e-9  # of a unit of length
_MOST_ROUNDS = 100  # of decisions at one moment


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedTrial:
    experiment: int
    number: int
    hparams: HParams
    length: float  # trained
    slot_s: float
    started_at: float | None
    ended_at: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedRun:
    """What happened, until the time to which it ran."""

    makespan_s: float  # until the last search was over
    slot_s: Mapping[str, float]  # held by person
    winners: Mapping[int, tuple[int, float, int] | None]  # by experiment: trial, metric, length
    trials: Sequence[SimulatedTrial]
    num_decisions: int
    impossible: Mapping[int, str]  # by experiment: why it can never run


@dataclass(slots=True, eq=False)
class _SubmittedSearch:
    number: int
    search: Search
    curve: Callable[[HParams, int], float]
    batches_per_s: Callable[[HParams, int], float]
    facts: dict[str, Any]
    submitted_at: float
    script_length: int
    is_begun: bool = False
    over_at: float | None = None


@dataclass(slots=True, eq=False)
class _Training:
    experiment: _SubmittedSearch
    number: int
    hparams: HParams
    queued_at: float
    target: int | None = None
    length: float = 0.0
    waiting_since: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    slot_s: float = 0.0
    ready: set[int] = field(default_factory=set)  # assignments whose workers have come
    stalled_until: float = 0.0
    reached_at: float | None = None  # its target; it validates from then on
    resized_at: float | None = None
    measured: dict[int, float] = field(default_factory=dict)

    @property
    def key(self) -> tuple[int, int]:
        return (self.experiment.number, self.number)

    @property
    def is_training(self) -> bool:
        least = self.experiment.facts["min_slots"]
        return self.ended_at is None and self.target is not None and len(self.ready) >= least

    def speed(self) -> float:
        return self.experiment.batches_per_s(self.hparams, len(self.ready)) if self.is_training else 0.0

    def advance(self, since: float, now: float) -> None:
        trained_s = now - max(since, self.stalled_until)
        if self.is_training and trained_s > 0:
            self.measured[len(self.ready)] = self.speed()
            if self.reached_at is None and (reached_at := self._reached_at(since)) <= now:
                self.reached_at = reached_at
            self.length = min(self.length + trained_s * self.speed(), float(self.target or 0))

    def done_at(self, now: float, validate_s: float) -> float:
        """When it has reached its target, and validated."""
        if not self.is_training:
            return inf
        return max(now, (self._reached_at(now) if self.reached_at is None else self.reached_at) + validate_s)

    def _reached_at(self, now: float) -> float:
        left = (self.target or 0) - self.length
        return max(now, self.stalled_until) + left / self.speed() if left > _DONE else now


class SimulatedPool:
    """`start_s`: from an order to the newcomer's first step; `regroup_s`: how long a trial stands still when a worker
    comes or leaves; `leave_s`: from the order to leave until the slot is free; `validate_s`: from the end of a trial's
    training to the search's decision."""

    def __init__(
        self,
        *,
        nodes: Mapping[str, int],
        people: Mapping[str, Person] | None = None,
        kinds: Mapping[str, str] | None = None,
        start_s: float = 0.5,
        regroup_s: float = 0.15,
        leave_s: float = 0.15,
        validate_s: float = 0.0,
        most_slots: int | None = None,
    ) -> None:
        kinds = kinds or {}
        self._nodes = {
            name: NodeFacts(agent=name, num_slots=slots, kind=kinds.get(name, "")) for name, slots in nodes.items()
        }
        self._people, self._most_slots = People(known=dict(people or {})), most_slots
        self._start_s, self._regroup_s, self._leave_s, self._validate_s = start_s, regroup_s, leave_s, validate_s
        self._experiments: dict[int, _SubmittedSearch] = {}
        self._trials: dict[tuple[int, int], _Training] = {}
        self._live: dict[int, Assignment] = {}
        self._due: dict[int, float] = {}  # by assignment: when its worker comes, or when it has left
        self._changes: list[tuple[float, NodeFacts]] = []
        self._used_by_person: RecentUse[str] = RecentUse()
        self._used_by_experiment: RecentUse[int] = RecentUse()
        self._slot_s: dict[str, float] = defaultdict(float)
        self._impossible: dict[int, str] = {}
        self._now, self._last_number, self._num_decisions = 0.0, 0, 0
        self._look_at: float | None = None

    def submit(
        self,
        *,
        searcher: Mapping[str, Any],
        hyperparameters: Mapping[str, Any] | None = None,
        curve: Callable[[HParams, int], float] = lambda hparams, length: 1.0 / length,
        batches_per_s: Callable[[HParams, int], float] = lambda hparams, slots: slots**0.9,
        seed: int = 0,
        at: float = 0.0,
        person: str = "",
        priority: int = 42,
        weight: float = 1.0,
        limit: int = 0,
        min_slots: int = 1,
        max_slots: int = 1,
        kind: str = "",
        is_exact: bool = True,
        script_length: int = 100,
    ) -> int:
        """The number of the experiment. `curve`: the metric after training to a length; `batches_per_s`: units of
        length per second, on this many slots; `limit`: max_slots of the whole experiment; `min_slots`, `max_slots`: of
        each trial; `script_length`: of a trial without max_length."""
        number = len(self._experiments) + 1
        search = Search.begin(read_searcher(searcher), read_space(hyperparameters), seed)
        facts = {"person": person, "priority": priority, "weight": weight, "experiment_max_slots": limit,
                 "min_slots": min_slots, "max_slots": max_slots, "kind": kind, "is_exact": is_exact}  # fmt: skip
        self._experiments[number] = _SubmittedSearch(
            number, search, curve, batches_per_s, facts, max(at, self._now), script_length
        )
        return number

    def change_node(self, name: str, *, at: float, **changes: Any) -> None:
        """From then on, the node has these facts, as num_slots=0, is_open=False or is_leaving=True."""
        self._changes.append((at, replace(self._nodes[name], **changes)))
        self._changes.sort(key=lambda each: each[0])

    def run(self, until: float = inf) -> SimulatedRun:
        """Until all searches are over, or to this time. May be called again, with a later one."""
        while (at := self._next()) <= until and at < inf:
            self._advance(at)
            self._happen()
            self._decide()
        if until < inf:
            self._advance(max(until, self._now))
        return self._report()

    # --- time

    def _next(self) -> float:
        if all(each.over_at is not None or each.number in self._impossible for each in self._experiments.values()):
            return inf
        times = [each.submitted_at for each in self._experiments.values() if not each.is_begun]
        times += [at for at, _ in self._changes]
        times += [trial.done_at(self._now, self._validate_s) for trial in self._running()]
        times += self._due.values()
        if self._look_at is not None:
            times.append(self._look_at)
        return max(min(times, default=inf), self._now)

    def _running(self) -> list[_Training]:
        return [self._trials[key] for key in sorted({each.key for each in self._live.values()})]

    def _advance(self, now: float) -> None:
        for each in self._live.values():
            self._trials[each.key].slot_s += now - self._now
            self._slot_s[self._trials[each.key].experiment.facts["person"]] += now - self._now
        for trial in self._running():
            trial.advance(self._now, now)
        self._now = now

    # --- events

    def _happen(self) -> None:
        """Everything that is due now, in an order that does not depend on slots."""
        while self._changes and self._changes[0][0] <= self._now:
            node = self._changes.pop(0)[1]
            self._nodes[node.agent] = node
        for number in [number for number, at in sorted(self._due.items()) if at <= self._now]:
            self._arrive_or_leave(number)
        for each in self._experiments.values():
            if not each.is_begun and each.submitted_at <= self._now:
                each.is_begun = True
                self._follow(each, each.search.start())
        for trial in self._running():
            if trial.done_at(self._now, self._validate_s) <= self._now:
                self._validate(trial)

    def _arrive_or_leave(self, number: int) -> None:
        del self._due[number]
        trial = self._trials[self._live[number].key]
        if self._live[number].state == GIVEN:
            trial.ready.add(number)
            trial.started_at = self._now if trial.started_at is None else trial.started_at
            if len(trial.ready) > 1:
                trial.stalled_until = self._now + self._regroup_s
        else:
            del self._live[number]

    def _validate(self, trial: _Training) -> None:
        length, experiment = trial.target or 0, trial.experiment
        trial.length, trial.target, trial.waiting_since, trial.reached_at = float(length), None, self._now, None
        metric = experiment.curve(trial.hparams, length)
        self._follow(experiment, experiment.search.apply(Validated(trial=trial.number, length=length, metric=metric)))
        if trial.ended_at is None and trial.target is None and length >= experiment.script_length:
            self._end(trial)

    def _follow(self, experiment: _SubmittedSearch, operations: Sequence[Operation]) -> None:
        for operation in operations:
            if isinstance(operation, CreateTrial):
                key = (experiment.number, operation.trial)
                self._trials[key] = _Training(experiment, operation.trial, operation.hparams, queued_at=self._now)
            elif isinstance(operation, TrainTo):
                trial = self._trials[experiment.number, operation.trial]
                trial.target = experiment.script_length if operation.length is None else operation.length
                trial.waiting_since = None
            elif isinstance(operation, StopTrial):
                self._end(self._trials[experiment.number, operation.trial])
        if experiment.search.is_done and experiment.over_at is None:
            experiment.over_at = self._now

    def _end(self, trial: _Training) -> None:
        if trial.ended_at is not None:
            return
        trial.ended_at, trial.target = self._now, None
        for each in [each for each in self._live.values() if each.key == trial.key and each.state == GIVEN]:
            self._release(each.number)
        ended = TrialEnded(trial=trial.number)
        self._follow(trial.experiment, trial.experiment.search.apply(ended))

    # --- decisions

    def _decide(self) -> None:
        for _ in range(_MOST_ROUNDS):
            decision = decide_pool(self._facts())
            self._num_decisions += 1
            self._look_at = decision.look_at
            self._impossible.update((each.experiment, each.reason) for each in decision.impossible)
            if not (decision.give or decision.release):
                return
            self._apply(decision)
        raise AssertionError(f"decisions at {self._now:g} s do not come to an end")

    def _apply(self, decision: PoolDecision) -> None:
        for release in decision.release:
            self._release(release.number)
        for grant in decision.give:
            self._last_number += 1
            candidate = grant.candidate
            self._live[self._last_number] = Assignment(
                number=self._last_number,
                pool=candidate.pool,
                agent=grant.agent,
                slot=grant.slot,
                experiment=candidate.experiment,
                trial=candidate.trial,
                state=GIVEN,
                reason=grant.reason,
                began_at=self._now,
            )
            self._due[self._last_number] = self._now + self._start_s
            self._trials[candidate.experiment, candidate.trial].resized_at = self._now
        self._note_use()

    def _release(self, number: int) -> None:
        """The worker leaves, and the others regroup."""
        given = self._live[number]
        trial = self._trials[given.key]
        trial.ready.discard(number)
        trial.resized_at, trial.stalled_until = self._now, self._now + self._regroup_s
        self._live[number] = replace(given, state=PARKING)
        self._due[number] = self._now + self._leave_s

    def _note_use(self) -> None:
        by_experiment = Counter(each.experiment for each in self._live.values())
        by_person: Counter[str] = Counter()
        for number, slots in by_experiment.items():
            by_person[self._experiments[number].facts["person"]] += slots
        self._used_by_person.note(by_person, self._now)
        self._used_by_experiment.note(by_experiment, self._now)

    def _facts(self) -> PoolFacts:
        self._note_use()
        live = [each for each in self._trials.values() if each.ended_at is None]
        return PoolFacts(
            now=self._now,
            candidates=[self._candidate(each) for each in live],
            nodes=list(self._nodes.values()),
            assignments=list(self._live.values()),
            people=self._people,
            owners={number: each.facts["person"] for number, each in self._experiments.items()},
            speeds={each.key: TrialSpeed(batches_per_s=each.measured, start_s=self._start_s) for each in live},
            used_by_person=self._used_by_person.used(self._now),
            used_by_experiment=self._used_by_experiment.used(self._now),
            resized_at={each.key: each.resized_at for each in live if each.resized_at is not None},
            most_slots=self._most_slots,
        )

    def _candidate(self, trial: _Training) -> Candidate:
        facts = trial.experiment.facts
        is_waiting = trial.target is None
        may_grow = trial.is_training and not is_waiting
        return Candidate(
            experiment=trial.experiment.number,
            trial=trial.number,
            trial_id=trial.number,
            job=trial_job(trial.experiment.number, trial.number),
            rank=(trial.experiment.number, trial.number),
            is_waiting=is_waiting,
            waiting_since=(trial.waiting_since or 0.0) if is_waiting else 0.0,
            batches_left=None if trial.target is None else max(trial.target - trial.length, 0.0),
            queued_at=trial.queued_at,
            **{**facts, "max_slots": facts["max_slots"] if may_grow else facts["min_slots"]},
        )

    def _report(self) -> SimulatedRun:
        over = [each.over_at for each in self._experiments.values() if each.over_at is not None]
        return SimulatedRun(
            makespan_s=max(over, default=self._now),
            slot_s=dict(self._slot_s),
            winners={each.number: each.search.best for each in self._experiments.values()},
            trials=[
                SimulatedTrial(
                    experiment=each.experiment.number,
                    number=each.number,
                    hparams=each.hparams,
                    length=each.length,
                    slot_s=each.slot_s,
                    started_at=each.started_at,
                    ended_at=each.ended_at,
                )
                for each in self._trials.values()
            ],
            num_decisions=self._num_decisions,
            impossible=dict(self._impossible),
        )
