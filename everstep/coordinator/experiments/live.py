"""An experiment that is not over, in memory: what the store holds, with its search folded from the events.

A cache of the store: changes are written first, and adopted here afterwards."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from everstep import wire
from everstep.coordinator.experiments import reuse
from everstep.coordinator.experiments.facts import MIXED, CheckpointRecord, Experiment, Trial
from everstep.coordinator.experiments.log_policies import excluded_nodes
from everstep.coordinator.experiments.retention import best_first
from everstep.coordinator.experiments.seam import Candidate, SlotHolder
from everstep.search.config import EXACT, SearchConfig, read_searcher
from everstep.search.draws import content_seed
from everstep.search.events import Ask, CreateTrial, Event, Operation, Suggested, event_from_plain, finite
from everstep.search.model_ranges import check_ranges
from everstep.search.read_space import read_space
from everstep.search.search import Search
from everstep.storage.database import StoreError
from everstep.wire.experiments import WAITING

BEGAN = {"kind": "began"}
_MOST_DONE = 0.99  # of a trial that is not over


class LiveExperiment:
    def __init__(self, facts: Experiment) -> None:
        self.facts = facts
        self.config, self.search = begin_search(facts.spec)
        self.trials: dict[int, Trial] = {}
        self.results: dict[int, dict[int, wire.TrialResult]] = defaultdict(dict)  # by trial and length
        self.checkpoints: dict[int, list[CheckpointRecord]] = defaultdict(list)  # by trial
        self.last_event = self.num_open = 0
        self.must_end: set[int] = set()
        self.parking: set[int] = set()  # the pool wants their slots
        self.waiting_since: dict[int, float] = {}
        self.ask: Ask | None = None  # without an answer yet
        self.is_asking = False
        self.is_reusing = reuse.is_wanted(facts.spec)  # results of trials that are the same
        self.borrowed: dict[int, list[CheckpointRecord]] = defaultdict(list)  # checkpoints of other trials, by trial
        self.looked_up: dict[int, int] = {}  # by trial: the target for which there is nothing to reuse
        self.is_looking = False
        self.released_in = ""  # the state in which slots were released last
        self.is_stale = False  # the store may know more: reload
        self.secrets: Mapping[str, str] = {}  # never shown
        self.lock = asyncio.Lock()
        self._keys: dict[tuple[int, str], str] = {}  # by trial and kind of machine
        self._candidates: list[Candidate] | None = None
        self._summary: dict[str, Any] | None = None

    @property
    def number(self) -> int:
        return self.facts.number

    def check_fresh(self) -> None:
        if self.is_stale:
            raise StoreError(f"experiment {self.number} is being reloaded; try again", code="experiment-reloads")

    # --- the fold

    def follow(self, event: Mapping[str, Any]) -> list[Operation]:
        """The operations that follow from an event that is stored, or about to be."""
        return self.apply(None if event["kind"] == BEGAN["kind"] else event_from_plain(event))

    def apply(self, event: Event | None) -> list[Operation]:
        """None: the first."""
        operations = self._seeded(self.search.start() if event is None else self.search.apply(event))
        if isinstance(event, Suggested):
            self.ask = None
        self.ask = next((each for each in operations if isinstance(each, Ask)), self.ask)
        return operations

    def _seeded(self, operations: Sequence[Operation]) -> list[Operation]:
        """With reuse, trials with equal hyperparameters get equal seeds; a verification repeats a seed."""
        spec = self.facts.spec
        if spec.trial_seed is None and not self.is_reusing:
            return list(operations)
        return [
            replace(each, seed=content_seed(spec.seed, each.hparams) if spec.trial_seed is None else spec.trial_seed)
            if isinstance(each, CreateTrial)
            else each
            for each in operations
        ]

    def note_result(self, trial: int, result: wire.TrialResult) -> None:
        self.results[trial][result.length] = result

    # --- what was written

    def adopt(self, facts: Experiment, trials: Iterable[Trial], now: float) -> None:
        self.facts, self._candidates, self._summary = facts, None, None
        for trial in trials:
            known = self.trials.get(trial.number)
            self.num_open += (not trial.is_over) - (known is not None and not known.is_over)
            self.trials[trial.number] = trial
            (self.must_end.add if trial.must_end else self.must_end.discard)(trial.number)
            if not trial.is_waiting:
                self.waiting_since.pop(trial.number, None)
            elif trial.number not in self.waiting_since:
                self.waiting_since[trial.number] = now

    def adopt_checkpoints(self, checkpoints: Iterable[CheckpointRecord]) -> None:
        for each in checkpoints:
            others = [other for other in self.checkpoints[each.trial] if other.uuid != each.uuid]
            self.checkpoints[each.trial] = [*others, each]

    def with_checkpoint(self, trial: Trial, checkpoint: CheckpointRecord) -> Trial:
        """The trial with its best and latest checkpoints, now that it has this one."""
        known = [each for each in self.checkpoints[trial.number] if each.uuid != checkpoint.uuid]
        known += self.borrowed[trial.number]
        return with_checkpoints(trial, [*known, checkpoint], smaller_is_better=self.config.smaller_is_better)

    def begins_with(self, trial: int) -> Mapping[str, Any]:
        """The checkpoint whose weights the trial starts with; empty: none."""
        return self.search.checkpoint_of(trial) or self.facts.warm_start

    def begun_with(self) -> set[str]:
        """The UUIDs of the checkpoints that open trials start from."""
        trials = (self.search.checkpoint_of(each.number) for each in self.trials.values() if not each.is_over)
        return {each["uuid"] for each in (self.facts.warm_start, *trials) if each}

    def key_of(self, trial: Trial, kind: str) -> str:
        if (key := self._keys.get((trial.number, kind))) is None:
            begins_with = self.begins_with(trial.number)
            key = reuse.reuse_key(self.facts.spec, self.config, trial, begins_with=begins_with, kind=kind)
            self._keys[trial.number, kind] = key
        return key

    def on_machine(self, trial: Trial, kind: str) -> Trial:
        """The trial, placed on this kind of machine."""
        if trial.kind in (kind, MIXED):
            return trial
        if trial.kind:
            return replace(trial, kind=MIXED, reuse_key="")
        return replace(trial, kind=kind, reuse_key=self.key_of(trial, kind) if self.is_reusing else "")

    def may_reuse(self, trial: Trial) -> bool:
        """Whether it has not started, and its target has not been looked up yet."""
        if not self.is_reusing or trial.started_at is not None:
            return False
        is_idle = not (trial.is_over or trial.is_waiting or trial.must_end)
        return is_idle and self.looked_up.get(trial.number) != trial.target_number

    def metric_at(self, trial: int, step: int) -> float | str | None:
        """The searcher's metric of a validation after this many batches."""
        for result in self.results[trial].values():
            if (result.batches or (result.length if self.config.unit == "batches" else 0)) == step:
                return result.metric
        return None

    # --- what others read

    def wanting(self, holder: SlotHolder) -> list[Candidate]:
        """Trials that want slots or have some."""
        return [each for each in self.candidates() if not self._is_idle(each) or holder.holds(self.number, each.trial)]

    def _is_idle(self, each: Candidate) -> bool:
        return each.is_waiting or each.trial in self.must_end or self.may_reuse(self.trials[each.trial])

    def batches_left(self, trial: Trial, step: int = 0) -> float | None:
        """Batches left to the trial's target, `step` batches after its start. None: unknown."""
        if trial.target is None:
            return None
        done = max(trial.batches, step)
        if self.config.unit == "batches":
            return max(0.0, trial.target - done)
        per_length = trial.batches / trial.length if trial.length else self._batches_per_length()
        return max(0.0, trial.target * per_length - done) if per_length else None

    def _batches_per_length(self) -> float:
        """Batches per unit of length, known from other trials; 0: unknown."""
        found = (each.batches / each.length for each in self.trials.values() if each.length and each.batches)
        return next(found, 0.0)

    def candidates(self) -> list[Candidate]:
        """All trials that are not over, with the fewest slots that they may have."""
        if self._candidates is None:
            spec, shared = self.facts.spec, self.facts.scheduling
            is_exact = self.config.order == EXACT
            kinds = [each.kind for each in self.trials.values() if each.kind and each.kind != MIXED]
            self._candidates = [
                Candidate(
                    experiment=self.number,
                    trial=trial.number,
                    trial_id=trial.trial_id,
                    job=trial.job,
                    rank=(self.number, trial.number),
                    is_waiting=trial.is_waiting,
                    waiting_since=self.waiting_since.get(trial.number, 0.0),
                    pool=shared.pool,
                    person=self.facts.owner,
                    priority=shared.priority,
                    weight=shared.weight,
                    experiment_max_slots=shared.max_slots,
                    min_slots=spec.min_slots,
                    max_slots=spec.min_slots,
                    batches_left=self.batches_left(trial),
                    kind=kinds[0] if kinds and is_exact else "",
                    is_exact=is_exact,
                    queued_at=trial.created_at,
                    excluded=excluded_nodes(trial),
                    preemption_timeout_s=shared.preemption_timeout_s,
                )
                for trial in self.trials.values()
                if not trial.is_over
            ]
        return self._candidates

    def summary(self) -> dict[str, Any]:
        """What a list of experiments shows: plain data, stored once the experiment is over."""
        if self._summary is None:
            self._summary = summary_of(self, self.trials)
        return self._summary


def begin_search(spec: wire.ExperimentSpec) -> tuple[SearchConfig, Search]:
    config = read_searcher(spec.searcher)
    space = read_space(spec.hyperparameters, num_micro_batches=spec.num_micro_batches)
    check_ranges(config, space)
    return config, Search.begin(config, space, spec.seed)


def summary_of(live: LiveExperiment, trials: Mapping[int, Trial]) -> dict[str, Any]:
    best = live.search.best
    found = None
    if best is not None and (trial := trials.get(best[0])) is not None:
        found = asdict(wire.BestResult(trial=best[0], metric=best[1], length=best[2], checkpoint=trial.best_checkpoint))
    counts = Counter(WAITING if each.is_waiting else each.state for each in trials.values())
    return {
        "searcher": live.config.name,
        "metric": live.config.metric,
        "smaller_is_better": live.config.smaller_is_better,
        "unit": live.config.unit,
        "progress": progress_of(live, trials),
        "num_trials": dict(counts),
        "best": found,
        "last_event": live.last_event,
    }


def progress_of(live: LiveExperiment, trials: Mapping[int, Trial]) -> float:
    """The search counts trials that are over; in plain searches, partly trained trials count partly."""
    if live.search.is_done:
        return 1.0
    progress = live.search.progress
    limit = live.config.max_length
    if limit and not live.config.is_halving:
        under_way = [min(each.length / limit, _MOST_DONE) for each in trials.values() if not each.is_over]
        total = len(trials) if not live.config.max_trials else max(live.config.max_trials, len(trials))
        progress += sum(under_way) / total if total else 0.0
    return min(progress, 1.0)


def with_checkpoints(trial: Trial, checkpoints: Sequence[CheckpointRecord], *, smaller_is_better: bool) -> Trial:
    latest = max(checkpoints, key=lambda each: (each.generation, each.step, each.created_at))
    best = [each for each in best_first(checkpoints, smaller_is_better=smaller_is_better) if _is_finite(each.metric)]
    return replace(trial, latest_checkpoint=latest.uuid, best_checkpoint=best[0].uuid if best else "")


def _is_finite(metric: float | str | None) -> bool:
    return metric is not None and finite(float(metric)) is not None
