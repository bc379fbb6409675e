"""Results of trials: each is an event of its search, stored once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from everstep import wire
from everstep.coordinator.experiments import trials
from everstep.coordinator.experiments.facts import CheckpointRecord, Trial
from everstep.coordinator.experiments.live import LiveExperiment
from everstep.coordinator.store.experiment_rows import EventRow, KeptExperiment
from everstep.search.events import Validated, finite

if TYPE_CHECKING:
    from everstep.coordinator.experiments.experiments import Experiments


async def keep_result(experiments: Experiments, live: LiveExperiment, trial: Trial, message: wire.TrialResult) -> None:
    """Store a new result of a trial. Hold the experiment's lock."""
    event = Validated(trial=trial.number, length=message.length, metric=finite(float(message.metric)))
    changed = trials.validated(trial, message, smaller_is_better=live.config.smaller_is_better)
    step = message.batches or (message.length if live.config.unit == "batches" else 0)
    saved = [
        replace(each, metric=message.metric)
        for each in live.checkpoints[trial.number]
        if each.step == step and each.metric is None
    ]
    for each in saved:
        changed = live.with_checkpoint(changed, each)
    await experiments.fold(live, event, [changed], result=message, checkpoints=saved)
    live.note_result(trial.number, message)


def result_of(row: EventRow) -> wire.TrialResult:
    """The result in a `validated` event."""
    metric = "nan" if row.event["metric"] is None else row.event["metric"]
    return wire.TrialResult(
        length=row.event["length"], metric=metric, batches=row.batches, digest=row.digest, is_planned=row.is_planned
    )


def results_of(rows: Iterable[EventRow], trial: int) -> tuple[dict[int, wire.TrialResult], list[int | None]]:
    """A trial's results by length, and its targets."""
    found: dict[int, wire.TrialResult] = {}
    targets: list[int | None] = []
    for row in rows:
        if row.event["kind"] == "validated" and row.event["trial"] == trial:
            found[row.event["length"]] = result_of(row)
        targets += [each["length"] for each in row.operations if each["kind"] == "train_to" and each["trial"] == trial]
    return found, targets


def remembered(loaded: KeptExperiment, saved: Sequence[CheckpointRecord], now: float) -> LiveExperiment:
    """An experiment, rebuilt from the store."""
    live = LiveExperiment(loaded.experiment)
    for row in loaded.events:
        live.follow(row.event)
        if row.event["kind"] == "validated":
            live.note_result(row.event["trial"], result_of(row))
        live.last_event = row.number
    live.adopt(loaded.experiment, loaded.trials, now)
    live.adopt_checkpoints(saved)
    return live
