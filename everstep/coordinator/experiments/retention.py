"""Which checkpoints of an experiment that is over are deleted. Pure.

A checkpoint is kept if it is one of the experiment's best, its trial's best, or its trial's latest. Without a
validation, it can only be one of the latest. Checkpoints that active experiments start from, and those that are
registered as versions of models, are never deleted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from everstep import wire
from everstep.coordinator.experiments.facts import DELETED, CheckpointRecord
from everstep.search.events import finite


def best_first(checkpoints: Sequence[CheckpointRecord], *, smaller_is_better: bool) -> list[CheckpointRecord]:
    """The validated checkpoints, best first. Metrics that are not finite come last. Ties go to the lower trial, and
    within a trial to the newest checkpoint: it is the one that the trial has kept."""

    def rank(each: CheckpointRecord) -> tuple[bool, float, int, int, int]:
        metric = finite(float(each.metric or 0.0))
        score = (metric or 0.0) * (1 if smaller_is_better else -1)
        return (metric is None, score, each.trial, -each.generation, -each.step)

    return sorted((each for each in checkpoints if each.metric is not None), key=rank)


def decide_deletion(
    checkpoints: Sequence[CheckpointRecord],
    kept: wire.CheckpointsKept,
    *,
    smaller_is_better: bool,
    used: Collection[str] = (),
) -> list[str]:
    """The UUIDs of the checkpoints to delete. `used`: those that are needed elsewhere."""
    there = [each for each in checkpoints if each.state != DELETED]
    best = best_first(there, smaller_is_better=smaller_is_better)
    keep = {each.uuid for each in best[: kept.experiment_best]} | set(used)
    best_of, latest_of = defaultdict[int, list[CheckpointRecord]](list), defaultdict[int, list[CheckpointRecord]](list)
    for each in best:
        best_of[each.trial].append(each)
    for each in sorted(there, key=lambda each: (each.generation, each.step), reverse=True):
        latest_of[each.trial].append(each)
    for few, of_trials in ((kept.trial_best, best_of), (kept.trial_latest, latest_of)):
        keep.update(each.uuid for some in of_trials.values() for each in some[:few])
    return [each.uuid for each in there if each.uuid not in keep]
