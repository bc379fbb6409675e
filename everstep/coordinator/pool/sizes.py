"""How many of an experiment's slots each of its trials should have: minimums first, in the order of the trials; then
one slot at a time to the trial where it saves most of the time left to its target.

Pure. Unmeasured speeds are assumed. A trial with an unknown amount of work left counts as having as much as the trial
of the experiment that has most left."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

from everstep.coordinator.pool.claims import ExperimentClaim, TrialClaim
from everstep.coordinator.pool.facts import TrialKey
from everstep.coordinator.pool.shares import Shares

Sizes = dict[TrialKey, int]  # open slots by trial
_LEAST_S = 1e-9  # left to a target: not zero, so that trials at their ends are still compared


def decide_sizes(experiments: Sequence[ExperimentClaim], shares: Shares) -> Sizes:
    sizes: Sizes = {}
    for each in experiments:
        sizes |= _sizes(each, shares[each.number])
    return sizes


def _sizes(experiment: ExperimentClaim, share: int) -> Sizes:
    num_running = bisect_right(experiment.least_sums, share) - 1
    sizes = {
        each.key: each.least if place < num_running else 0
        for place, each in enumerate(experiment.trials)
    }  # fmt: skip
    running, rest = experiment.trials[:num_running], share - experiment.least_sums[num_running]
    growing = [each for each in running if each.most > each.least]
    if sum(each.most - each.least for each in growing) <= rest:
        return sizes | {each.key: each.most for each in growing}
    return sizes | _grown(growing, rest) if rest > 0 else sizes


def _grown(trials: Sequence[TrialClaim], rest: int) -> Sizes:
    sizes = [each.least for each in trials]
    work = [alone_s * each.speed_at(1) for each, alone_s in zip(trials, _alone_s(trials), strict=True)]

    def lasts_s(place: int, size: int) -> float:
        each = trials[place]
        return work[place] / each.speed_at(len(each.fixed) + size)

    queue = []
    for place, size in enumerate(sizes):
        then_s = lasts_s(place, size + 1)
        queue.append((then_s - lasts_s(place, size), place, then_s))
    heapify(queue)
    for _ in range(rest):
        _, place, now_s = queue[0]
        sizes[place] += 1
        if sizes[place] == trials[place].most:
            heappop(queue)
        else:  # not computed for all sizes beforehand: a trial may ask for any number of slots
            then_s = lasts_s(place, sizes[place] + 1)
            heapreplace(queue, (then_s - now_s, place, then_s))
    return {each.key: size for each, size in zip(trials, sizes, strict=True)}


def _alone_s(trials: Sequence[TrialClaim]) -> list[float]:
    """How long each trial would need for its target with one slot."""
    measured = [each.speed_at(1) for each in trials if each.curve is not None]
    usual = sum(measured) / len(measured) if measured else 1.0
    known = [
        None
        if (left := each.candidate.batches_left) is None
        else left / (usual if each.curve is None else each.speed_at(1))
        for each in trials
    ]
    longest = max((each for each in known if each is not None), default=1.0)
    return [max(longest if each is None else each, _LEAST_S) for each in known]
