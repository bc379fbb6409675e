"""Spans of a job from its marks: generations and regroups follow each other without a gap, and keep their IDs."""

from __future__ import annotations

from everstep.coordinator.spans.job_spans import JobMoment, JobOfSpans, job_spans
from everstep.coordinator.spans.span import SpanIds, TraceSpan
from everstep.wire import Mark

IDS = SpanIds(store="store", root="experiment:3")
JOB = JobOfSpans(subject="e3-t1", job="e3-t1", ids=IDS, parent=IDS.of("trial", 1))


def mark(number: int, time: float, kind: str, generation: int = 0, **more: object) -> Mark:
    return Mark(number=number, time=time, step=number, kind=kind, generation=generation, **more)  # type: ignore[arg-type]


CREATED = mark(1, 10.0, "created")
FIRST = mark(2, 12.0, "formed", 1, size=2, joined=["w0", "w1"])
DIED = mark(3, 20.0, "died", 1, worker="w1", reason="w1 killed by SIGKILL")
CLOSED = mark(4, 20.0, "closed", 1, reason="w1 died")
SECOND = mark(5, 20.5, "formed", 2, size=2, joined=["w2"], parted=["w1"])
STOPPED = mark(6, 30.0, "stopped", 2, reason="done")


def spans(*marks: Mark, moments: tuple[JobMoment, ...] = ()) -> dict[str, TraceSpan]:
    return {each.name: each for each in job_spans(JOB, marks, moments)}


def test_a_generation_that_regrouped_begins_where_the_one_before_ended() -> None:
    found = spans(CREATED, FIRST, DIED, CLOSED, SECOND, STOPPED)
    first, second, regroup = found["generation 1"], found["generation 2"], found["regroup"]
    assert (first.start, first.end, second.start, second.end) == (12.0, 20.0, 20.0, 30.0)
    assert (regroup.start, regroup.end, regroup.parent) == (20.0, 20.5, second.id)
    assert first.parent == second.parent == JOB.parent
    assert [each.name for each in first.events] == ["died"]
    assert regroup.facts["everstep.joined"] == "w2" and regroup.facts["everstep.reason"] == "w1 died"


def test_a_generation_of_new_workers_alone_did_not_regroup() -> None:
    """A trial that was parked for an hour has not regrouped for an hour."""
    parked = mark(5, 3620.0, "formed", 2, size=1, joined=["w7"], parted=["w0", "w1"])
    found = spans(CREATED, FIRST, CLOSED, parked, STOPPED)
    assert "regroup" not in found and found["generation 2"].start == 3620.0


def test_what_is_not_over_is_not_told_and_has_the_same_id_later() -> None:
    before, after = spans(CREATED, FIRST, DIED, CLOSED, SECOND), spans(CREATED, FIRST, DIED, CLOSED, SECOND, STOPPED)
    assert before.keys() == {"generation 1", "regroup"}
    assert before["regroup"].parent == after["generation 2"].id
    assert {name: each.id for name, each in before.items()}.items() <= {n: each.id for n, each in after.items()}.items()


def test_a_moment_belongs_to_its_generation_by_number_or_else_by_time() -> None:
    moments = (
        JobMoment(name="checkpoint", key="u", time=25.0, generation=1),  # reported late
        JobMoment(name="validation", key="1", time=22.0),
        JobMoment(name="early", key="2", time=11.0),
    )
    found = spans(CREATED, FIRST, CLOSED, SECOND, STOPPED, moments=moments)
    assert found["checkpoint"].parent == found["generation 1"].id
    assert found["validation"].parent == found["generation 2"].id
    assert found["early"].parent == JOB.parent
    assert found["validation"].start == found["validation"].end == 22.0


def test_a_death_between_generations_belongs_to_the_next() -> None:
    late = mark(5, 20.2, "died", 1, worker="w0", reason="w0 died too")
    found = spans(CREATED, FIRST, CLOSED, late, SECOND, STOPPED)
    assert [each.name for each in found["generation 2"].events] == ["died"]


def test_ids_differ_by_store_root_and_thing() -> None:
    others = [SpanIds(store="other", root="experiment:3"), SpanIds(store="store", root="experiment:4")]
    assert len({IDS.trace, *(each.trace for each in others)}) == 3
    assert len({IDS.of("trial", 1), IDS.of("trial", 2), *(each.of("trial", 1) for each in others)}) == 4
    assert 0 < IDS.trace < 1 << 128 and 0 < IDS.of_root < 1 << 64
