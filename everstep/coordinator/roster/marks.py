"""What the page's band of workers shows: marks that follow from a change of a roster.

A mark is one thing that happened, with the coordinator's sentence: a generation formed or closed, a worker died, joined
or left, another one leads. Pure: steps and the time come in as arguments. Kept together with the change itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from everstep.coordinator.roster.facts import ALIVE, DEAD, LEFT, LOST, SENT, Generation, Roster, Worker
from everstep.wire import Mark

CREATED, FORMED, CLOSED, DIED, JOINED = "created", "formed", "closed", "died", "joined"
LEFT_, LEADS, RESTARTED, FINISHED, STOPPED = "left", "leads", "restarted", "finished", "stopped"


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """When something happened: the next number, the time of day, the step that was committed, and the one that a new
    generation begins with."""

    number: int
    time: float
    step: int = 0
    formed_step: int = 0


def created(moment: Moment) -> Mark:
    return Mark(number=moment.number, time=moment.time, step=0, kind=CREATED, reason="the job was created")


def marks_between(before: Roster, after: Roster, moment: Moment) -> list[Mark]:
    if after is before:
        return []
    found = [*_of_workers(before, after), *_of_closing(before, after), *_of_attempt(before, after)]
    steps = [moment.step] * len(found)
    formed = [*_of_forming(before, after)]
    steps += [moment.formed_step] * len(formed)
    ended = [*_of_end(before, after)]
    steps += [max(moment.step, moment.formed_step * bool(formed))] * len(ended)
    return [
        Mark(number=moment.number + index, time=moment.time, step=step, **fields)
        for index, (fields, step) in enumerate(zip([*found, *formed, *ended], steps, strict=True))
    ]


def _of_workers(before: Roster, after: Roster) -> Iterator[dict[str, Any]]:
    """Deaths, and workers that left; after the end of the job, they only tidy up."""
    if after.workers is before.workers or before.is_over:
        return
    for name, worker in after.workers.items():
        earlier = before.workers.get(name)
        if worker is earlier or (earlier is not None and earlier.status != ALIVE):
            continue
        if worker.status in (DEAD, LOST):
            yield {"kind": DIED, "rank": worker.died_as, "reason": _how(worker), **_of(before, name)}
        elif worker.status in (LEFT, SENT):
            rank = before.generation.ranks.get(name, -1)
            yield {"kind": LEFT_, "rank": rank, "reason": f"{name}: {worker.reason}", **_of(before, name)}


def _how(worker: Worker) -> str:
    return f"{worker.worker} {'is lost: ' * (worker.status == LOST)}{worker.reason}"


def _of(roster: Roster, name: str) -> dict[str, Any]:
    return {"worker": name, "generation": roster.generation.number}


def _of_closing(before: Roster, after: Roster) -> Iterator[dict[str, Any]]:
    if before.generation.is_open and after.generation is not before.generation and not before.is_over:
        is_followed = after.generation.number > before.generation.number
        closed = after.previous if is_followed else after.generation
        if closed.is_closed:
            yield {"kind": CLOSED, "generation": closed.number, "reason": closed.reason, "size": len(closed.members)}


def _of_attempt(before: Roster, after: Roster) -> Iterator[dict[str, Any]]:
    if after.attempt.number > before.attempt.number and after.attempt.number > 0:
        reason = after.attempt.reason
        yield {"kind": RESTARTED, "generation": after.generation.number, "reason": reason, "size": after.attempt.size}


def _of_forming(before: Roster, after: Roster) -> Iterator[dict[str, Any]]:
    generation, previous = after.generation, after.previous
    if generation.number == before.generation.number:
        return
    joined = [each for each in generation.ranks if each not in previous.ranks]
    parted = [each for each in previous.ranks if each not in generation.ranks]
    leader, facts = _leader(generation), {"generation": generation.number, "reason": generation.reason}
    size = len(generation.members)
    yield {"kind": FORMED, "worker": leader, "rank": 0, "size": size, "joined": joined, "parted": parted, **facts}
    if previous.number == 0:
        return
    for name in joined:
        reason = f"{name} joined generation {generation.number}"
        yield {**facts, "kind": JOINED, "worker": name, "rank": generation.ranks[name], "reason": reason}
    if leader != _leader(previous):
        reason = f"{leader} leads from generation {generation.number} on, after {_leader(previous)}"
        yield {**facts, "kind": LEADS, "worker": leader, "rank": 0, "reason": reason}


def _leader(generation: Generation) -> str:
    return generation.members[0].worker if generation.members else ""


def _of_end(before: Roster, after: Roster) -> Iterator[dict[str, Any]]:
    if after.is_over and not before.is_over:
        kind = FINISHED if after.is_finished else STOPPED
        yield {"kind": kind, "generation": after.generation.number, "reason": after.reason}
