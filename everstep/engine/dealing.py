"""How many micro-batches of a step each worker gets, by measured speed, and which worker is slow. Pure.

All workers learn the same numbers with each step, so all make the same decision. Shares change only for a clear gain:
after a change, loaders must read other samples, and in exact mode, runs that do not end where subtrees end have more
sums to send."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import fsum
from statistics import fmean, median

LEAST_GAIN = 0.1  # of a step
LEAST_GAIN_S = 0.002  # shorter times are noise
SLOW, RECOVERED = 1.5, 1.25  # times the median of the others


@dataclass(frozen=True, kw_only=True, slots=True)
class Deal:
    shares: tuple[int, ...]  # by rank
    step_s: float  # expected with these shares …
    step_s_before: float  # … and expected without the change


def equal_shares(num_micro_batches: int, size: int) -> tuple[int, ...]:
    cuts = [rank * num_micro_batches // size for rank in range(size + 1)]
    return tuple(stop - start for start, stop in pairwise(cuts))


def decide_deal(
    shares: tuple[int, ...], micro_batch_s: Sequence[float], sum_s: float, *, is_exact: bool
) -> Deal | None:
    """None: the shares stay. `micro_batch_s`: by rank; 0: not known, such as a newcomer's, which counts as the median.
    `sum_s`: the part of a step after the slowest worker's micro-batches."""
    known = [each for each in micro_batch_s if each > 0]
    if not known:
        return None
    usual = median(known)
    paces = [each if each > 0 else usual for each in micro_batch_s]
    now_s = _longest_s(shares, paces) + sum_s
    least_s = max(LEAST_GAIN * now_s, LEAST_GAIN_S)
    ideal_s = sum(shares) / fsum(1 / each for each in paces)
    if now_s - sum_s - ideal_s < least_s:  # nearly always
        return None
    sum_s_each = sum_s / _num_sums(shares, is_exact)
    found = [
        (_longest_s(each, paces) + sum_s_each * _num_sums(each, is_exact), each)
        for each in _candidates(sum(shares), paces)
    ]
    step_s, best = min(found)
    return Deal(shares=best, step_s=step_s, step_s_before=now_s) if now_s - step_s >= least_s else None


def _longest_s(shares: Sequence[int], paces: Sequence[float]) -> float:
    return max(share * pace for share, pace in zip(shares, paces, strict=True))


def _num_sums(shares: Sequence[int], is_exact: bool) -> int:
    """The number of partial sums that all workers together contribute."""
    if not is_exact:
        return len(shares)
    cuts = [0, *accumulate(shares)]
    return sum(num_nodes(start, stop, cuts[-1]) for start, stop in pairwise(cuts))


def num_nodes(start: int, stop: int, num_leaves: int) -> int:
    """len(cover(range(start, stop), num_leaves)), but in a few steps: with thousands of workers, `cover` is slow."""
    found, end = 0, num_leaves  # nodes of this level
    while start < stop and end > 1:
        is_last = stop == end  # a node without a sibling is its own parent
        found += (start & 1) + (stop & 1 and not is_last)
        start, stop, end = (start + 1) >> 1, (stop + is_last) >> 1, (end + 1) >> 1
    return found + (start < stop)


def _candidates(num_micro_batches: int, paces: Sequence[float]) -> Iterator[tuple[int, ...]]:
    """Equal shares, then shares dealt one by one, and in whole subtrees of 2, 4, …, which have fewer sums to send."""
    yield equal_shares(num_micro_batches, len(paces))
    unit = 1
    while num_micro_batches % unit == 0 and num_micro_batches // unit >= len(paces):
        yield tuple(unit * each for each in shares_by_speed(num_micro_batches // unit, paces))
        unit *= 2


def shares_by_speed(number: int, paces: Sequence[float]) -> tuple[int, ...]:
    """Shares with which the last worker ends as early as possible. Each gets at least one."""
    shares = [1] * len(paces)
    ends = [(2 * pace, rank) for rank, pace in enumerate(paces)]
    heapq.heapify(ends)
    for _ in range(number - len(paces)):
        _, rank = ends[0]
        shares[rank] += 1
        heapq.heapreplace(ends, ((shares[rank] + 1) * paces[rank], rank))
    return tuple(shares)


def slowness(micro_batch_s: Mapping[str, float]) -> dict[str, float]:
    """By worker: its time divided by the median of the others. 0: not known; 1: the difference is noise."""
    found, known = dict.fromkeys(micro_batch_s, 0.0), sorted(each for each in micro_batch_s.values() if each > 0)
    for worker, own_s in micro_batch_s.items():
        if own_s > 0 and len(known) > 1:
            usual = _median_of_others(known, bisect_left(known, own_s))
            found[worker] = own_s / usual if abs(own_s - usual) >= LEAST_GAIN_S else 1.0
    return found


def _median_of_others(ordered: Sequence[float], own: int) -> float:
    """Makes no copy for each worker: there may be thousands of workers, in each step."""
    places = {(len(ordered) - 2) // 2, (len(ordered) - 1) // 2}  # of the others, in order
    return fmean(ordered[place + (place >= own)] for place in places)
