"""The spans of one job: its generations, with the regroup that each began with, its checkpoints and validations.

A generation lasts from the closing of the one before, if workers continued from there, to its own closing. Checkpoints
and validations have no length: only their ends are known. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from everstep.coordinator.roster import marks as kinds
from everstep.coordinator.spans.span import Fact, SpanEvent, SpanIds, TraceSpan
from everstep.wire import Mark

_OVER = (kinds.CLOSED, kinds.FINISHED, kinds.STOPPED)
_OF_WORKERS = (kinds.DIED, kinds.JOINED, kinds.LEFT_, kinds.LEADS)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobMoment:
    """A checkpoint or a validation."""

    name: str
    key: str  # that no other one of this job has
    time: float
    generation: int = 0  # 0: not known; that of the time
    facts: dict[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobOfSpans:
    subject: str
    job: str
    ids: SpanIds
    parent: int  # the span of the trial, or of the job


@dataclass(kw_only=True, slots=True)
class _OpenGeneration:
    formed: Mark
    closed_before: Mark | None  # that it regrouped after
    events: list[SpanEvent]
    over: Mark | None = None

    @property
    def start(self) -> float:
        return self.formed.time if self.closed_before is None else self.closed_before.time


def job_spans(of: JobOfSpans, marks: Sequence[Mark], moments: Sequence[JobMoment]) -> Iterator[TraceSpan]:
    """All that are over, in the order in which they ended."""
    generations = _generations(marks)
    found = [span for each in generations for span in _of_generation(of, each)]
    found += [_of_moment(of, each, generations) for each in moments]
    yield from sorted(found, key=lambda span: (span.end, span.start))


def root_events(marks: Sequence[Mark]) -> tuple[SpanEvent, ...]:
    """What is about the job as a whole."""
    return tuple(_event(each) for each in marks if each.kind in (kinds.CREATED, kinds.RESTARTED))


def _generations(marks: Sequence[Mark]) -> list[_OpenGeneration]:
    found: list[_OpenGeneration] = []
    closed: Mark | None = None
    waiting: list[SpanEvent] = []  # of workers, while there is no generation
    for mark in marks:
        now = found[-1] if found and found[-1].over is None else None
        if mark.kind == kinds.FORMED:
            if now is not None:
                now.over = mark  # its closing left no mark
            continues = closed is not None and len(mark.joined) < mark.size
            found.append(_OpenGeneration(formed=mark, closed_before=closed if continues else None, events=waiting))
            closed, waiting = None, []
        elif mark.kind in _OVER:
            if now is not None:
                now.over = mark
            closed = mark if mark.kind == kinds.CLOSED else None
        elif mark.kind in _OF_WORKERS:
            (waiting if now is None else now.events).append(_event(mark))
    return found


def _of_generation(of: JobOfSpans, each: _OpenGeneration) -> Iterator[TraceSpan]:
    formed, number = each.formed, each.formed.generation
    own = of.ids.of(of.job, "generation", number)
    if each.closed_before is not None:
        yield TraceSpan(
            subject=of.subject,
            trace=of.ids.trace,
            id=of.ids.of(of.job, "regroup", number),
            parent=own,
            name="regroup",
            start=each.closed_before.time,
            end=formed.time,
            facts={
                "everstep.job": of.job,
                "everstep.generation": number,
                "everstep.reason": each.closed_before.reason,
                "everstep.step": formed.step,
                "everstep.joined": " ".join(formed.joined),
                "everstep.parted": " ".join(formed.parted),
            },
        )
    if each.over is not None:
        yield TraceSpan(
            subject=of.subject,
            trace=of.ids.trace,
            id=own,
            parent=of.parent,
            name=f"generation {number}",
            start=each.start,
            end=each.over.time,
            facts={
                "everstep.job": of.job,
                "everstep.generation": number,
                "everstep.workers": formed.size,
                "everstep.reason": formed.reason,
                "everstep.ended": each.over.reason,
                "everstep.first_step": formed.step,
                "everstep.last_step": each.over.step,
            },
            events=tuple(each.events),
        )


def _of_moment(of: JobOfSpans, each: JobMoment, generations: Sequence[_OpenGeneration]) -> TraceSpan:
    during = [it for it in generations if it.start <= each.time and (it.over is None or each.time <= it.over.time)]
    named = [it for it in generations if each.generation and it.formed.generation == each.generation]
    found = next(iter(named or during), None)
    return TraceSpan(
        subject=of.subject,
        trace=of.ids.trace,
        id=of.ids.of(of.job, each.name, each.key),
        parent=of.parent if found is None else of.ids.of(of.job, "generation", found.formed.generation),
        name=each.name,
        start=each.time,
        end=each.time,
        facts={"everstep.job": of.job, **each.facts},
    )


def _event(mark: Mark) -> SpanEvent:
    facts: dict[str, Fact] = {"everstep.reason": mark.reason, "everstep.step": mark.step}
    if mark.worker:
        facts["everstep.worker"] = mark.worker
    return SpanEvent(name=mark.kind, time=mark.time, facts=facts)
