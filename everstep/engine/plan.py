"""Who computes which leaves of a step. Pure.

A global batch is always the same `num_leaves` leaves, whatever the number of workers. Leaves that a survivor
has computed before a peer died stay where they are; only the missing ones are dealt out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from everstep.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    held: tuple[tuple[int, ...], ...]  # by rank: computed already
    todo: tuple[tuple[int, ...], ...]  # by rank: to be computed
    reason: str

    def leaves(self, rank: int) -> tuple[int, ...]:
        """All leaves whose gradients this rank brings to the sum."""
        return tuple(sorted(self.held[rank] + self.todo[rank]))

    def owner(self, leaf: int) -> int:
        return next(rank for rank in range(len(self.todo)) if leaf in self.leaves(rank))


def plan_step(*, num_leaves: int, size: int, held: Sequence[Sequence[int]] | None = None) -> Plan:
    """Contiguous runs of leaves; after a loss, missing leaves go to those with the fewest."""
    if not 1 <= size <= num_leaves:
        raise UsageError(
            f"{size} workers cannot share {num_leaves} leaves: each needs at least one",
            hint=f"use leaves={size} or more, or at most {num_leaves} workers",
        )
    kept = tuple(tuple(sorted(leaves)) for leaves in held) if held is not None else ((),) * size
    taken = [leaf for leaves in kept for leaf in leaves]
    if len(taken) != len(set(taken)):
        raise UsageError(f"a leaf is held twice: {kept}")
    missing = [leaf for leaf in range(num_leaves) if leaf not in set(taken)]
    if not taken:
        runs = tuple(tuple(range(rank * num_leaves // size, (rank + 1) * num_leaves // size)) for rank in range(size))
        return Plan(held=kept, todo=runs, reason=f"{num_leaves} leaves over {size} workers")
    quota = _fill([len(leaves) for leaves in kept], len(missing))
    todo, start = [], 0
    for count in quota:
        todo.append(tuple(missing[start : start + count]))
        start += count
    return Plan(
        held=kept,
        todo=tuple(todo),
        reason=f"{len(taken)} of {num_leaves} leaves kept, {len(missing)} dealt to {size} workers",
    )


def _fill(loads: list[int], amount: int) -> list[int]:
    """How many more each gets, so that the highest load is as low as it can be; ties go to the lower rank."""
    now, given = list(loads), [0] * len(loads)
    for _ in range(amount):
        lowest = min(range(len(now)), key=lambda rank: (now[rank], rank))
        now[lowest] += 1
        given[lowest] += 1
    return given
