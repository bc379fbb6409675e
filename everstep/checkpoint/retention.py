"""Decide which checkpoints are kept. Never deletes the newest whole one, nor the best, nor the furthest.

A run that begins again at an older step begins a new history. Until that has come as far as the old one, the newest
checkpoint of the old one holds training that exists nowhere else: it is kept, whatever the policy says.

Pure: what there is comes in as values, what is to be deleted goes out with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from everstep.checkpoint.manifest import CheckpointKey, RetentionPolicy


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """A checkpoint as retention sees it."""

    key: CheckpointKey
    is_whole: bool = True
    metric: float | None = None  # of the policy's name; NaN counts as none


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    keep: Mapping[CheckpointKey, str]  # why
    delete: Mapping[CheckpointKey, str]
    overtaken: frozenset[CheckpointKey] = frozenset()  # kept against the policy: newer ones have not come as far

    @property
    def reason(self) -> str:
        return f"{len(self.keep)} kept, {len(self.delete)} to delete"


def decide_retention(found: Sequence[Standing], policy: RetentionPolicy) -> Retention:
    whole = sorted((each.key for each in found if each.is_whole), reverse=True)
    if not whole:
        return Retention(keep={each.key: "no whole checkpoint is newer" for each in found}, delete={})
    latest = whole if policy.keep_latest is None else whole[: max(policy.keep_latest, 1)]
    keep = {key: f"among the latest {len(latest)}" for key in latest} | {whole[0]: "the newest whole one"}
    overtaken = frozenset(_furthest(whole)) - keep.keys()
    keep |= dict.fromkeys(overtaken, f"the newest of a history that came further than step {whole[0].step}")
    for rank, each in enumerate(best_first(found, policy)[: policy.keep_best]):
        keep.setdefault(each.key, f"number {rank + 1} by {policy.metric}")
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


def best_first(found: Sequence[Standing], policy: RetentionPolicy) -> list[Standing]:
    """Whole ones with a metric, best first; of equals the newer."""
    if policy.metric is None:
        return []
    sign = 1.0 if policy.mode == "min" else -1.0
    rated = [(each.metric, each) for each in found if each.is_whole and each.metric is not None]
    known = [(sign * metric, each) for metric, each in rated if metric == metric]
    known.sort(key=lambda pair: pair[1].key, reverse=True)
    known.sort(key=lambda pair: pair[0])
    return [each for _, each in known]
