"""Which worker computes which micro-batches of a step (pure).

A global batch is always the same `num_micro_batches` micro-batches, whatever the number of workers. Micro-batches that
a survivor has computed before a peer died stay where they are; only the missing ones are dealt out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from everstep.engine.dealing import equal_shares
from everstep.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatch:
    """One micro-batch to be computed: the `index`-th of the `step`-th global batch."""

    step: int
    index: int
    is_ghost: bool = False  # nothing is left for this worker: it runs the body to take the step, and adds nothing
    is_rehearsal: bool = False  # a ghost outside any step: a newcomer runs the body for the first time


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    held: tuple[tuple[int, ...], ...]  # by rank: computed already
    todo: tuple[tuple[int, ...], ...]  # by rank: to be computed

    def micro_batches(self, rank: int) -> tuple[int, ...]:
        """All micro-batches whose gradients this rank brings to the sum."""
        return tuple(sorted(self.held[rank] + self.todo[rank]))


def plan_step(
    *,
    num_micro_batches: int,
    size: int,
    held: Sequence[Sequence[int]] | None = None,
    shares: Sequence[int] = (),
    resting: Collection[int] = (),
) -> Plan:
    """Contiguous runs of micro-batches; after a loss, missing micro-batches go to those with the fewest.

    shares: by rank, how many micro-batches it gets if none are held; equal by default (dealing.py).
    resting: ranks that get none in this step; then the others get equal shares."""
    if not 1 <= size <= num_micro_batches:
        raise UsageError(
            f"{size} workers cannot share {num_micro_batches} micro-batches: each needs at least one",
            hint=f"use micro_batches={size} or more, or at most {num_micro_batches} workers",
            code="more-workers-than-micro-batches",
        )
    kept = tuple(tuple(sorted(micro_batches)) for micro_batches in held) if held is not None else ((),) * size
    taken = [micro_batch for micro_batches in kept for micro_batch in micro_batches]
    if len(taken) != len(set(taken)):
        raise UsageError(f"a micro-batch is held twice: {kept}", code="micro-batch-held-twice")
    missing = [micro_batch for micro_batch in range(num_micro_batches) if micro_batch not in set(taken)]
    if not taken:
        if resting:
            others = iter(equal_shares(num_micro_batches, size - len(resting)))
            shares = [0 if rank in resting else next(others) for rank in range(size)]
        cuts = [0, *accumulate(shares or equal_shares(num_micro_batches, size))]
        runs = tuple(tuple(range(start, stop)) for start, stop in pairwise(cuts))
        return Plan(held=kept, todo=runs)
    return Plan(held=kept, todo=_deal(kept, missing, resting))


def _deal(
    kept: Sequence[Sequence[int]], missing: Sequence[int], resting: Collection[int]
) -> tuple[tuple[int, ...], ...]:
    """Keep the highest load as low as possible; a micro-batch goes to the holder of its sibling in the tree if that
    costs nothing: it is then added to a sum that exists already."""
    siblings = [{micro_batch for micro_batch in missing if micro_batch ^ 1 in micro_batches} for micro_batches in kept]
    ranks = [rank for rank in range(len(kept)) if rank not in resting]
    quota = _fill([len(each) for each in kept], [bool(each) for each in siblings], len(missing), ranks)
    todo = [sorted(each)[:count] for each, count in zip(siblings, quota, strict=True)]
    left = [micro_batch for micro_batch in missing if not any(micro_batch in micro_batches for micro_batches in todo)]
    for micro_batches, count in zip(todo, quota, strict=True):
        while len(micro_batches) < count:
            micro_batches.append(left.pop(0))
    return tuple(tuple(sorted(micro_batches)) for micro_batches in todo)


def _fill(loads: list[int], is_preferred: list[bool], amount: int, ranks: Sequence[int]) -> list[int]:
    """How many more each of these ranks gets; ties go to preferred ranks, then to the lower rank."""
    now, given = list(loads), [0] * len(loads)
    for _ in range(amount):
        lowest = min(ranks, key=lambda rank: (now[rank], not is_preferred[rank] or given[rank] > 0, rank))
        now[lowest] += 1
        given[lowest] += 1
    return given
