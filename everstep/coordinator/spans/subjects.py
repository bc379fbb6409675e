"""What spans are found for, one at a time: an experiment, a trial, or a job of its own. Read from the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from everstep import wire
from everstep.coordinator.experiments.facts import CheckpointRecord, Experiment, Trial
from everstep.coordinator.experiments.trial_calls import trial_key
from everstep.coordinator.roster import marks as kinds
from everstep.coordinator.spans.job_spans import JobMoment, JobOfSpans, job_spans, root_events
from everstep.coordinator.spans.span import Fact, SpanIds, TraceSpan
from everstep.coordinator.store.experiment_rows import (
    EventRow,
    read_checkpoints,
    read_experiment,
    read_job_checkpoints,
    read_trial,
)
from everstep.coordinator.store.mark_rows import load_marks
from everstep.coordinator.store.tables import EXPORTED_SPANS, JOBS
from everstep.storage.database import upsert
from everstep.wire import Mark
from everstep.wire.hparams import flat

_EXPERIMENT = "experiment:"  # no job's name has a colon
_MOST_MARKS = 100_000
_ENDS = (kinds.FINISHED, kinds.STOPPED)


@dataclass(frozen=True, kw_only=True, slots=True)
class SubjectSpans:
    spans: list[TraceSpan]
    is_over: bool  # nothing more will come


def experiment_subject(number: int) -> str:
    return f"{_EXPERIMENT}{number}"


def experiment_of(subject: str) -> int | None:
    """None: the subject is a job."""
    return int(subject.removeprefix(_EXPERIMENT)) if subject.startswith(_EXPERIMENT) else None


# --- which spans were sent: rows ---


@dataclass(frozen=True, kw_only=True, slots=True)
class SentSpans:
    """All spans of a subject that ended before `until` were sent."""

    until: float
    is_over: bool


def read_sent(connection: Connection, subject: str) -> SentSpans | None:
    columns = EXPORTED_SPANS.c
    row = connection.execute(select(columns.until, columns.is_over).where(columns.subject == subject)).first()
    return None if row is None else SentSpans(until=row[0], is_over=row[1])


def read_unfinished(connection: Connection) -> list[str]:
    """Subjects with spans that may still have to be sent."""
    columns = EXPORTED_SPANS.c
    return list(connection.scalars(select(columns.subject).where(columns.is_over.is_(False))))


def write_sent(connection: Connection, sent: Mapping[str, SentSpans]) -> None:
    rows = [{"subject": name, "until": each.until, "is_over": each.is_over} for name, each in sent.items()]
    upsert(connection, EXPORTED_SPANS, rows)


# --- spans ---


def read_marks(connection: Connection, subject: str, after: int) -> list[Mark]:
    """Of a job; an experiment has none."""
    return [] if experiment_of(subject) is not None else load_marks(connection, subject, after, _MOST_MARKS)


def read_spans(
    connection: Connection, store: str, subject: str, marks: Sequence[Mark], results: Sequence[EventRow]
) -> SubjectSpans:
    """`marks`: of the job, all of them. `results`: of the trial, from its search."""
    if (number := experiment_of(subject)) is not None:
        experiment = read_experiment(connection, number)
        return _of_experiment(store, subject, experiment)
    key = trial_key(subject)
    trial = read_trial(connection, *key) if key else None
    if trial is not None:
        saved = read_checkpoints(connection, trial.experiment, trial.number)
        return _of_trial(store, subject, trial, marks, [*_saved(saved), *_validated(results)])
    saved = read_job_checkpoints(connection, subject)
    is_known = connection.scalar(select(JOBS.c.job).where(JOBS.c.job == subject)) is not None
    return _of_job(store, subject, marks, list(_saved(saved)), is_known=is_known)


def _of_experiment(store: str, subject: str, experiment: Experiment | None) -> SubjectSpans:
    if experiment is None or experiment.ended_at is None:
        return SubjectSpans(spans=[], is_over=experiment is None)
    ids = SpanIds(store=store, root=subject)
    facts: dict[str, Fact] = {
        "everstep.experiment": experiment.number,
        "everstep.name": experiment.name,
        "everstep.searcher": str(experiment.summary.get("searcher", "")),
        "everstep.state": experiment.state,
        "everstep.reason": experiment.reason,
        "everstep.owner": experiment.owner,
        "everstep.trials": sum(experiment.summary.get("num_trials", {}).values()),
    }
    span = TraceSpan(
        subject=subject,
        trace=ids.trace,
        id=ids.of_root,
        parent=None,
        name=f"experiment {experiment.number}",
        start=experiment.created_at,
        end=experiment.ended_at,
        facts=facts,
        problem=experiment.reason if experiment.state == wire.ERROR else "",
    )
    return SubjectSpans(spans=[span], is_over=True)


def _of_trial(
    store: str, subject: str, trial: Trial, marks: Sequence[Mark], moments: Sequence[JobMoment]
) -> SubjectSpans:
    ids = SpanIds(store=store, root=experiment_subject(trial.experiment))
    own = ids.of("trial", trial.number)
    found = list(job_spans(JobOfSpans(subject=subject, job=subject, ids=ids, parent=own), marks, moments))
    if trial.ended_at is None:
        return SubjectSpans(spans=found, is_over=False)
    facts: dict[str, Fact] = {
        "everstep.experiment": trial.experiment,
        "everstep.trial": trial.number,
        "everstep.trial_id": trial.trial_id,
        "everstep.job": subject,
        "everstep.state": trial.state,
        "everstep.reason": trial.reason,
        "everstep.length": trial.length,
        "everstep.restarts": trial.num_restarts,
        **({} if trial.best is None else {"everstep.best": trial.best}),
        **{f"everstep.hparams.{name}": _fact(value) for name, value in flat(trial.hparams)},
    }
    span = TraceSpan(
        subject=subject,
        trace=ids.trace,
        id=own,
        parent=ids.of_root,
        name=f"trial {trial.number}",
        start=trial.started_at or trial.created_at,
        end=trial.ended_at,
        facts=facts,
        events=root_events(marks),
        problem=trial.reason if trial.state == wire.ERROR else "",
    )
    last = next((each.kind for each in reversed(marks) if each.kind in (kinds.FORMED, kinds.CLOSED, *_ENDS)), "")
    return SubjectSpans(spans=[*found, span], is_over=last != kinds.FORMED)


def _of_job(
    store: str, subject: str, marks: Sequence[Mark], moments: Sequence[JobMoment], *, is_known: bool
) -> SubjectSpans:
    ids = SpanIds(store=store, root=subject)
    found = list(job_spans(JobOfSpans(subject=subject, job=subject, ids=ids, parent=ids.of_root), marks, moments))
    end = next((each for each in reversed(marks) if each.kind in _ENDS), None)
    if end is None:
        return SubjectSpans(spans=found, is_over=not is_known)
    facts: dict[str, Fact] = {"everstep.job": subject, "everstep.reason": end.reason, "everstep.step": end.step}
    span = TraceSpan(
        subject=subject,
        trace=ids.trace,
        id=ids.of_root,
        parent=None,
        name=f"job {subject}",
        start=marks[0].time,
        end=end.time,
        facts=facts,
        events=root_events(marks),
        problem=end.reason if end.kind == kinds.STOPPED else "",
    )
    return SubjectSpans(spans=[*found, span], is_over=True)


def _saved(checkpoints: Sequence[CheckpointRecord]) -> Iterator[JobMoment]:
    for each in checkpoints:
        facts: dict[str, Fact] = {
            "everstep.checkpoint": each.uuid,
            "everstep.step": each.step,
            "everstep.bytes": each.num_bytes,
        }
        yield JobMoment(name="checkpoint", key=each.uuid, time=each.created_at, generation=each.generation, facts=facts)


def _validated(results: Sequence[EventRow]) -> Iterator[JobMoment]:
    for each in results:
        facts: dict[str, Fact] = {
            "everstep.length": each.event["length"],
            "everstep.metric": float("nan") if each.event["metric"] is None else each.event["metric"],
            "everstep.step": each.batches,
        }
        yield JobMoment(name="validation", key=str(each.number), time=each.time, facts=facts)


def _fact(value: Any) -> Fact:
    return value if isinstance(value, str | int | float | bool) else str(value)
