"""Decide when a checkpoint is due, and the generation that it is filed under.

Checkpoints are ordered by (generation, step). What is saved now must come after all that is there, also in a new job
whose own generations begin at 1, and after a return to an older step: else retention would delete it, and the old
history would be the latest. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from everstep.checkpoint.manifest import CheckpointKey, Manifest


@dataclass(frozen=True, kw_only=True, slots=True)
class Lineage:
    """`base` is added to the job's own generation."""

    base: int
    reason: str


def decide_lineage(
    *, step: int, world_generation: int, job: str, newest: Manifest | None, unread: CheckpointKey | None = None
) -> Lineage:
    """For the first save of a world: `newest` is the newest whole checkpoint that is there, `unread` the newest that
    cannot be read here and may be whole."""
    last = max((key for key in (newest.key if newest else None, unread) if key is not None), default=None)
    if last is None:
        return Lineage(base=0, reason="the first checkpoint")
    base, reason = 0, "newer than all that is there"
    if newest is not None and newest.job == job and newest.world_generation <= world_generation:
        base, reason = newest.key.generation - newest.world_generation, "goes on with the job's own"
    if CheckpointKey(generation=base + world_generation, step=step) <= last:
        base = last.generation + 1 - world_generation
        reason = f"step {step} must come after {last.folder}, another history"
    return Lineage(base=base, reason=reason)


@dataclass(frozen=True, kw_only=True, slots=True)
class DueSave:
    is_due: bool
    reason: str
    is_in_memory: bool = False  # kept there, and written only if the worker dies


def decide_due(step: int, *, every: int | None, memory_every: int | None = None, is_asked: bool) -> DueSave:
    """`is_asked`: somebody waits for this one."""
    if every is None or is_asked:
        return DueSave(is_due=True, reason="asked for")
    if step % every == 0:
        return DueSave(is_due=True, reason=f"step {step} is a multiple of {every}")
    if memory_every is not None and step % memory_every == 0:
        return DueSave(is_due=True, is_in_memory=True, reason=f"step {step} is a multiple of {memory_every}")
    return DueSave(is_due=False, reason=f"step {step} is not a multiple of {every}")
