"""Decide when a checkpoint is due, the generation it is filed under, and which checkpoints are kept.

Checkpoints are ordered by (generation, step). A new one must come after all that exist, also in a new job whose own
generations begin at 1, and after a return to an older step: else it would be deleted in favor of the old history.
Never deleted are the newest whole one, the best, and the furthest: a run that begins again at an older step begins a
new history, and until that has come as far as the old one, the old one's newest checkpoint exists nowhere else.
Pure: facts come in as values, decisions go out with the reason."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from everstep.checkpoint.manifest import CheckpointKey, Manifest, RetentionPolicy


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A checkpoint's folder. `problem` is empty if its manifest and all its files are there in full size."""

    key: CheckpointKey
    manifest: Manifest | None = None
    problem: str = ""
    is_unreadable: bool = False  # storage gave an error, or a newer version wrote it: it may be whole

    @property
    def is_whole(self) -> bool:
        return not self.problem

    @property
    def step(self) -> int:
        return self.key.step

    @property
    def metrics(self) -> dict[str, float]:
        return self.manifest.metrics if self.manifest is not None else {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    keep: Mapping[CheckpointKey, str]  # why
    delete: Mapping[CheckpointKey, str]
    overtaken: frozenset[CheckpointKey] = frozenset()  # kept despite the policy: newer ones have not come as far


def decide_retention(
    found: Sequence[Found], policy: RetentionPolicy, marked: Collection[CheckpointKey] = ()
) -> Retention:
    """`marked`: those that must stay, whatever the policy says."""
    whole = sorted((each.key for each in found if each.is_whole), reverse=True)
    if not whole:
        return Retention(keep={each.key: "no whole checkpoint is newer" for each in found}, delete={})
    latest = whole if policy.keep_latest is None else whole[: max(policy.keep_latest, 1)]
    keep = {key: f"among the latest {len(latest)}" for key in latest} | {whole[0]: "the newest whole one"}
    overtaken = frozenset(_furthest(whole)) - keep.keys()
    keep |= dict.fromkeys(overtaken, f"the newest of a history that came further than step {whole[0].step}")
    for rank, each in enumerate(best_first(found, policy)[: policy.keep_best]):
        keep.setdefault(each.key, f"number {rank + 1} by {policy.metric}")
    for each in found:
        if each.key in marked:
            keep.setdefault(each.key, "registered as a version of a model")
    delete = {}
    for each in found:
        if each.key in keep:
            continue
        if each.is_whole:
            delete[each.key] = f"neither among the latest {policy.keep_latest} nor among the best {policy.keep_best}"
        elif each.key > latest[-1]:
            # Newer than the newest: it is being written. Between the latest: a person may want to look at it.
            keep[each.key] = "not whole, but recent"
        else:
            delete[each.key] = "not whole, and there are newer ones that are"
    return Retention(keep=keep, delete=delete, overtaken=overtaken)


def _furthest(newest_first: Sequence[CheckpointKey]) -> list[CheckpointKey]:
    """Those with a higher step than all that are newer."""
    found: list[CheckpointKey] = []
    for key in newest_first:
        if not found or key.step > found[-1].step:
            found.append(key)
    return found


def best_first(found: Sequence[Found], policy: RetentionPolicy) -> list[Found]:
    """Whole ones with a finite metric, best first; of equals the newer."""
    if policy.metric is None:
        return []
    sign = 1.0 if policy.mode == "min" else -1.0
    rated = [(sign * each.metrics.get(policy.metric, math.nan), each) for each in found if each.is_whole]
    known = [pair for pair in rated if math.isfinite(pair[0])]
    known.sort(key=lambda pair: pair[1].key, reverse=True)
    known.sort(key=lambda pair: pair[0])
    return [each for _, each in known]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lineage:
    """`base` is added to the job's own generation."""

    base: int
    reason: str


def decide_lineage(
    *, step: int, world_generation: int, job: str, newest: Manifest | None, unread: CheckpointKey | None = None
) -> Lineage:
    """For the first save of a world: `newest` is the newest whole checkpoint, `unread` the newest that cannot be read
    here and may be whole."""
    last = max((key for key in (newest.key if newest else None, unread) if key is not None), default=None)
    if last is None:
        return Lineage(base=0, reason="the first checkpoint")
    base, reason = 0, "newer than all existing ones"
    if newest is not None and newest.job == job and newest.world_generation <= world_generation:
        base, reason = newest.key.generation - newest.world_generation, "continues the job's own"
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
    """`is_asked`: the caller waits for this one."""
    if every is None or is_asked:
        return DueSave(is_due=True, reason="asked for")
    if step % every == 0:
        return DueSave(is_due=True, reason=f"step {step} is a multiple of {every}")
    if memory_every is not None and step % memory_every == 0:
        return DueSave(is_due=True, is_in_memory=True, reason=f"step {step} is a multiple of {memory_every}")
    return DueSave(is_due=False, reason=f"step {step} is not a multiple of {every}")
