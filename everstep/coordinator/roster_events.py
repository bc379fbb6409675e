"""The events that follow from a change of a roster, emitted once it has been kept."""

from __future__ import annotations

from everstep.coordinator.roster.facts import ALIVE, Attempt, Generation, Roster
from everstep.events import emit


def emit_changes(before: Roster, after: Roster) -> None:
    job, generation = after.job, after.generation
    if before.generation.is_open and generation.number > before.generation.number:
        _emit_generation(job, after.previous)  # closed and followed in one go
    if generation is not before.generation:
        _emit_generation(job, generation)
    if after.attempt is not before.attempt:
        _emit_attempt(job, after.attempt)
    if after.is_over and not before.is_over:
        emit("job.finished" if after.is_finished else "job.stopped", job=job, reason=after.reason)
    if after.workers is before.workers:
        return
    for name, worker in after.workers.items():
        earlier = before.workers.get(name)
        if worker is not earlier and worker.status != ALIVE and (earlier is None or earlier.status != worker.status):
            emit(f"worker.{worker.status}", job=job, worker=name, generation=generation.number, reason=worker.reason)


def _emit_generation(job: str, generation: Generation) -> None:
    what = "generation.closed" if generation.is_closed else "generation.formed"
    members = [member.worker for member in generation.members]
    emit(what, job=job, generation=generation.number, members=members, reason=generation.reason)


def _emit_attempt(job: str, attempt: Attempt) -> None:
    what = "attempt.closed" if attempt.is_closed else "attempt.began"
    agents = [part.agent for part in attempt.parts]
    emit(what, job=job, attempt=attempt.number, agents=agents, size=attempt.size, reason=attempt.reason)
