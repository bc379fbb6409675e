"""Experiments, trials, events and checkpoints as messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everstep import wire
from everstep.coordinator.clock import steady_time
from everstep.coordinator.experiments.facts import CheckpointRecord, Experiment, Trial
from everstep.coordinator.experiments.live import LiveExperiment
from everstep.coordinator.experiments.reuse import reused_text
from everstep.coordinator.experiments.seam import SlotHolder
from everstep.coordinator.experiments.time_limits import ran_s
from everstep.coordinator.experiments.trials import WAITS
from everstep.coordinator.store.experiment_rows import EventRow
from everstep.wire.experiments import RUNNING, WAITING


def experiment_view(
    facts: Experiment, live: LiveExperiment | None, trials: Mapping[int, Trial], holder: SlotHolder
) -> wire.ExperimentView:
    summary = dict(facts.summary) if live is None else live.summary()
    held = {each.number: holder.holds(facts.number, each.number) for each in trials.values() if not each.is_over}
    counts = dict(summary.get("num_trials", {}))
    if running := sum(1 for number, slots in held.items() if slots and not trials[number].is_waiting):
        counts = {**counts, wire.QUEUED: counts.get(wire.QUEUED, 0) - running, RUNNING: running}
    best = summary.get("best")
    return wire.ExperimentView(
        experiment=facts.number,
        name=facts.name,
        state=facts.state,
        reason=facts.reason,
        searcher=summary.get("searcher", ""),
        metric=summary.get("metric", ""),
        smaller_is_better=summary.get("smaller_is_better", True),
        unit=summary.get("unit", "batches"),
        progress=summary.get("progress", 0.0),
        num_trials={state: number for state, number in sorted(counts.items()) if number},
        num_slots=sum(held.values()),
        best=wire.BestResult(**best) if best else None,
        created_at=facts.created_at,
        started_at=facts.started_at,
        ended_at=facts.ended_at,
        description=facts.description,
        labels=list(facts.labels),
        notes=facts.notes,
        is_archived=facts.is_archived,
        forked_from=facts.spec.forked_from,
        code=str(facts.spec.order.get("code") or ""),
        last_event=summary.get("last_event", 0),
        kept=facts.kept,
        owner=facts.owner,
        created_by=facts.created_by,
        scheduling=facts.scheduling,
        ran_s=ran_s(facts, steady_time()),
    )


def trial_view(trial: Trial, holder: SlotHolder, experiment_state: str) -> wire.TrialView:
    num_slots = holder.holds(trial.experiment, trial.number)
    state = trial.state
    if not trial.is_over:
        state = WAITING if trial.is_waiting else RUNNING if num_slots else wire.QUEUED
    return wire.TrialView(
        experiment=trial.experiment,
        trial=trial.number,
        trial_id=trial.trial_id,
        job=trial.job,
        state=state,
        reason="; ".join(
            text for text in (_reason(trial, state, holder, experiment_state), reused_text(trial.reused)) if text
        ),
        hparams=dict(trial.hparams),
        seed=trial.seed,
        bracket=trial.bracket,
        target=trial.target,
        length=trial.length,
        latest=_value(trial.latest),
        best=trial.best,
        best_length=trial.best_length,
        num_restarts=trial.num_restarts,
        num_slots=num_slots,
        best_checkpoint=trial.best_checkpoint,
        latest_checkpoint=trial.latest_checkpoint,
        batches=trial.batches,
        created_at=trial.created_at,
        started_at=trial.started_at,
        ended_at=trial.ended_at,
        kind=trial.kind,
    )


def _reason(trial: Trial, state: str, holder: SlotHolder, experiment_state: str) -> str:
    """The trial's reason. If it is in the queue: why it waits, and what happened to it before."""
    before = trial.reason.removeprefix(WAITS)
    if state != wire.QUEUED:
        return trial.reason if before == trial.reason else f"continues; before: {before}"
    if experiment_state == wire.PAUSED:
        now = "its experiment is paused"
    else:
        now = holder.why_queued(trial.experiment, trial.number)
    if not now or trial.started_at is None:
        return now or trial.reason
    return f"{now}; before: {before}"


def best_trials_first(trials: Sequence[Trial], *, smaller_is_better: bool) -> list[Trial]:
    """Those without a finite metric come last; ties go to the lower number."""
    sign = 1 if smaller_is_better else -1
    return sorted(trials, key=lambda each: (each.best is None, sign * (each.best or 0.0), each.number))


def event_view(row: EventRow) -> wire.SearchEventView:
    told = {name: getattr(row, name) for name in ("number", "time", "event", "operations", "digest")}
    return wire.SearchEventView(**told)


def checkpoint_view(
    checkpoint: CheckpointRecord, metadata: Mapping[str, Any], registered: Sequence[wire.RegisteredAs]
) -> wire.SavedCheckpoint:
    return wire.SavedCheckpoint(
        uuid=checkpoint.uuid,
        uri=checkpoint.uri,
        step=checkpoint.step,
        job=checkpoint.job,
        experiment=checkpoint.experiment,
        trial=checkpoint.trial,
        metric=_value(checkpoint.metric),
        metrics=dict(checkpoint.metrics),
        state=checkpoint.state,
        num_bytes=checkpoint.num_bytes,
        created_at=checkpoint.created_at,
        digest=checkpoint.digest,
        metadata=dict(metadata),
        registered=list(registered),
    )


def _value(metric: float | str | None) -> Any:
    return metric
