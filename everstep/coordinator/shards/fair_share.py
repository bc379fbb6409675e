"""Decide how much of what is left one worker gets at a time, so that all are through at the same time.

While there is plenty, a whole shard. Towards the end of an epoch, half of what is the worker's by its pace; and nothing
at all if the others are through with everything before it would be through with one batch more: it would be waited for.
Pure: facts and `now` in, a value with its reason out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LEAST_S = 0.05  # of work in a lease, and of waiting that is worth a thought: a call takes about as long
ABSENT_S = 2.0  # after which a worker that holds nothing, and asks for nothing, is not counted on any more


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerPace:
    """How quickly one process processes its samples, as it reports."""

    per_s: float  # samples
    asked_at: float  # when it last asked for more


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """What one process holds, and how quickly it gets through it."""

    per_s: float
    num_held: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FairShare:
    most: int  # samples; 0: it had better wait
    code: str
    reason: str


def decide_share(own: Load, others: Iterable[Load], *, num_free: int, batch_size: int, shard_size: int) -> FairShare:
    """`others`: all who are expected to ask for more. Somebody always gets some: the quickest, at the latest when all
    hold nothing."""
    team = [own, *others]
    per_s = sum(each.per_s for each in team)
    all_s = (num_free + sum(each.num_held for each in team)) / per_s
    own_s = (own.num_held + batch_size) / own.per_s
    if own_s > all_s + len(team) * batch_size / per_s + LEAST_S:
        reason = f"all is done in {all_s:.2f} s; with one batch more this worker would take {own_s:.2f} s"
        return FairShare(most=0, reason=reason, code="others-are-sooner")
    wanted = max((all_s * own.per_s - own.num_held) / 2, LEAST_S * own.per_s)
    most = min(max(int(wanted) // batch_size, 1) * batch_size, shard_size)
    return FairShare(
        most=most, reason=f"{num_free} samples are free, and all is done in {all_s:.2f} s", code="share-of-rest"
    )


def is_plenty(own: Load, per_s_of_all: float, *, num_free: int, shard_size: int) -> bool:
    """Whether a worker gets a whole shard whatever the others hold: a quick test for the usual case."""
    return num_free * own.per_s >= (own.num_held + 2 * shard_size) * per_s_of_all


def is_expected(pace: WorkerPace, num_leased: int, now: float) -> bool:
    """Whether a process with this many leased samples will ask for more. One that does something else for long is not
    counted on."""
    return now < pace.asked_at + max(ABSENT_S, 2 * num_leased / pace.per_s)
