"""Decide which states of dead workers stay in the memory of a node's saver. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftMemory:
    """What a worker that has ended left in memory."""

    size_bytes: int
    left_at: float
    is_written: bool  # to storage: the newest state
    is_writing: bool = False
    is_over: bool = False  # its owner will not come back


def decide_drops(left: Sequence[LeftMemory], most_bytes: int) -> Mapping[int, str]:
    """Which are freed, by their place in `left`, and why: of owners that are over, and the oldest of the others until
    the rest fits. A state that is not on storage stays."""
    may_go = [index for index, each in enumerate(left) if each.is_written and not each.is_writing]
    drops = {index: "its owner is over" for index in may_go if left[index].is_over}
    total = sum(each.size_bytes for index, each in enumerate(left) if index not in drops)
    for index in sorted(set(may_go) - drops.keys(), key=lambda index: left[index].left_at):
        if total <= most_bytes:
            break
        drops[index] = f"{total} bytes are held, {most_bytes} may be, and it is the oldest"
        total -= left[index].size_bytes
    return drops
