"""An experiment that is not over, in memory: what the store holds, with its search folded from the events.

A cache of the store: changes are written first, and adopted here afterwards."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from everstep import wire
from everstep.coordinator.experiments.facts import CheckpointRecord, Experiment, Trial
from everstep.coordinator.experiments.retention import best_first
from everstep.coordinator.experiments.seam import Candidate
from everstep.coordinator.store.experiment_rows import KeptExperiment
from everstep.search.config import SearchConfig, read_searcher
from everstep.search.events import Ask, Event, Operation, Suggested, event_from_plain, finite
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
        self.released_in = ""  # the state in which slots were released last
        self.is_stale = False  # the store may know more: to be read again
        self.lock = asyncio.Lock()
        self._candidates: list[Candidate] | None = None
        self._summary: dict[str, Any] | None = None

    @property
    def number(self) -> int:
        return self.facts.number

    def check_fresh(self) -> None:
        if self.is_stale:
            raise StoreError(f"experiment {self.number} is read again; ask again", code="experiment-reloads")

    # --- the fold

    def follow(self, event: Mapping[str, Any]) -> list[Operation]:
        """What the search says to an event that was kept, or is about to be."""
        return self.apply(None if event["kind"] == BEGAN["kind"] else event_from_plain(event))

    def apply(self, event: Event | None) -> list[Operation]:
        """None: the first."""
        operations = self.search.start() if event is None else self.search.apply(event)
        if isinstance(event, Suggested):
            self.ask = None
        self.ask = next((each for each in operations if isinstance(each, Ask)), self.ask)
        return operations

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
        """Which are the best and the latest now."""
        known = [each for each in self.checkpoints[trial.number] if each.uuid != checkpoint.uuid]
        return with_checkpoints(trial, [*known, checkpoint], smaller_is_better=self.config.smaller_is_better)

    def metric_at(self, trial: int, step: int) -> float | str | None:
        """The searcher's metric of a validation after this many batches."""
        for result in self.results[trial].values():
            if (result.batches or (result.length if self.config.unit == "batches" else 0)) == step:
                return result.metric
        return None

    # --- what others read

    def candidates(self) -> list[Candidate]:
        """Of all trials that are not over; the caller leaves out those that want no slot."""
        if self._candidates is None:
            self._candidates = [
                Candidate(
                    experiment=self.number,
                    trial=trial.number,
                    trial_id=trial.trial_id,
                    job=trial.job,
                    rank=(self.number, trial.number),
                    is_waiting=trial.is_waiting,
                    waiting_since=self.waiting_since.get(trial.number, 0.0),
                )
                for trial in self.trials.values()
                if not trial.is_over
            ]
        return self._candidates

    def summary(self) -> dict[str, Any]:
        """What a list shows: plain data, kept with an experiment that is over."""
        if self._summary is None:
            self._summary = summary_of(self, self.trials)
        return self._summary


def begin_search(spec: wire.ExperimentSpec) -> tuple[SearchConfig, Search]:
    config = read_searcher(spec.searcher)
    space = read_space(spec.hyperparameters, num_micro_batches=spec.num_micro_batches)
    return config, Search.begin(config, space, spec.seed)


def remembered(loaded: KeptExperiment, saved: Sequence[CheckpointRecord], now: float) -> LiveExperiment:
    live = LiveExperiment(loaded.experiment)
    for row in loaded.events:
        live.follow(row.event)
        if row.event["kind"] == "validated":
            metric = "nan" if row.event["metric"] is None else row.event["metric"]
            result = wire.TrialResult(length=row.event["length"], metric=metric, batches=row.batches)
            live.note_result(row.event["trial"], result)
        live.last_event = row.number
    live.adopt(loaded.experiment, loaded.trials, now)
    live.adopt_checkpoints(saved)
    return live


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
    """The search knows ends; besides, trials of plain searches count as far as they are."""
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
