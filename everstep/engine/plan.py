"""Who computes which leaves of a step. Pure.

A global batch is always the same `num_leaves` leaves, whatever the number of workers. Leaves that a survivor
has computed before a peer died stay where they are; only the missing ones are dealt out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

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


def plan_step(
    *, num_leaves: int, size: int, held: Sequence[Sequence[int]] | None = None, leaf_s: Sequence[float] = ()
) -> Plan:
    """Contiguous runs of leaves; after a loss, missing leaves go to those with the fewest.

    leaf_s: by rank, how long it takes for a leaf: the quick ones then get more of them."""
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
        cuts = [rank * num_leaves // size for rank in range(size + 1)]
        if leaf_s and all(leaf_s):
            cuts = [0, *accumulate(_shares(num_leaves, leaf_s))]
        runs = tuple(tuple(range(start, stop)) for start, stop in pairwise(cuts))
        return Plan(held=kept, todo=runs, reason=f"{num_leaves} leaves over {size} workers")
    return Plan(
        held=kept,
        todo=_deal(kept, missing),
        reason=f"{len(taken)} of {num_leaves} leaves kept, {len(missing)} dealt to {size} workers",
    )


def _shares(num_leaves: int, leaf_s: Sequence[float]) -> list[int]:
    """How many leaves each gets so that the last one ends as early as can be: at least one each."""
    shares = [1] * len(leaf_s)
    for _ in range(num_leaves - len(leaf_s)):
        shares[min(range(len(leaf_s)), key=lambda rank: ((shares[rank] + 1) * leaf_s[rank], rank))] += 1
    return shares


def _deal(kept: Sequence[Sequence[int]], missing: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """So that the highest load is as low as it can be; a leaf goes to who holds its sibling in the tree if that costs
    nothing: it is then added to a sum that there is."""
    siblings = [{leaf for leaf in missing if leaf ^ 1 in leaves} for leaves in kept]
    quota = _fill([len(leaves) for leaves in kept], [bool(each) for each in siblings], len(missing))
    todo = [sorted(each)[:count] for each, count in zip(siblings, quota, strict=True)]
    left = [leaf for leaf in missing if not any(leaf in leaves for leaves in todo)]
    for leaves, count in zip(todo, quota, strict=True):
        while len(leaves) < count:
            leaves.append(left.pop(0))
    return tuple(tuple(sorted(leaves)) for leaves in todo)


def _fill(loads: list[int], is_preferred: list[bool], amount: int) -> list[int]:
    """How many more each gets; ties go to who is preferred, then to the lower rank."""
    now, given = list(loads), [0] * len(loads)
    for _ in range(amount):
        lowest = min(range(len(now)), key=lambda rank: (now[rank], not is_preferred[rank] or given[rank] > 0, rank))
        now[lowest] += 1
        given[lowest] += 1
    return given
