"""Decide what a worker that asks for samples gets, and when a lost worker's samples may be given to another.

Samples of lost workers go first, then shards that were never leased, then what a silent worker holds. While there is
plenty, a lease is a whole shard. Towards the end of an epoch it is half of what is the worker's by its pace, so that
all are through at the same time; and nothing at all if the others are through with everything before it would be
through with one batch more: it would be waited for. At the very end a slow worker is asked to give back what it has not
begun. Nothing is taken from a worker that may still commit it: an exact count needs the owner's word, or the proof that
it has none.
Pure: facts and `now` in, a value with its reason out."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from everstep.coordinator.roster.facts import ALIVE, Roster, listed
from everstep.ranges import Range, Ranges, as_ranges, size
from everstep.wire import RefusedPart

FEWEST_DURATIONS = 3  # fewer do not show what is slow
LEAST_S = 0.05  # of work in a lease, and of waiting that is worth a thought: a call takes about as long
ABSENT_S = 2.0  # after which a worker that holds nothing, and asks for nothing, is not counted on any more

Key = tuple[str, str]  # worker and incarnation: one process


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldLease:
    """Samples that one worker holds, or that wait to be leased again."""

    lease: int
    start: int
    stop: int
    left: Ranges  # not reported as done
    request: int = 0  # the holder's request that it answers
    is_takeover: bool = False  # a slow worker gave it back
    # --- not kept ---
    since: float = 0.0
    is_asked: bool = False  # its holder was asked to give back what it has not begun

    def row(self) -> dict[str, Any]:
        """Of one that waits to be leased again."""
        return {"lease": self.lease, "start": self.start, "stop": self.stop, "is_takeover": self.is_takeover}


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """What one process has asked and holds of a dataset."""

    worker: str
    incarnation: str
    request: int = 0  # its latest
    generation: int = 0  # the latest in whose steps it used its leases; 0: it does not use them in steps
    refused: tuple[RefusedPart, ...] = ()  # of its latest request
    leases: Mapping[int, HeldLease] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return self.worker, self.incarnation

    def row(self) -> dict[str, Any]:
        return {
            "worker": self.worker,
            "incarnation": self.incarnation,
            "request": self.request,
            "generation": self.generation,
            "refused": [asdict(each) for each in self.refused],
            "leases": [
                [each.lease, each.start, each.stop, each.left, each.request, each.is_takeover]
                for each in self.leases.values()
            ],
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any], now: float) -> Holder:
        names = ("lease", "start", "stop", "left", "request", "is_takeover")
        found = [dict(zip(names, each, strict=True)) for each in row["leases"]]
        leases = [HeldLease(**{**each, "left": as_ranges(each["left"])}, since=now) for each in found]
        refused = tuple(RefusedPart(**each) for each in row["refused"])
        return cls(**{**row, "refused": refused, "leases": {each.lease: each for each in leases}})

    @property
    def num_held(self) -> int:
        return sum(size(lease.left) for lease in self.leases.values())

    @property
    def num_leased(self) -> int:
        """With what is done of these leases."""
        return sum(lease.stop - lease.start for lease in self.leases.values())


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
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseFacts:
    """All that is known when a process asks."""

    asker: Key
    again: HeldLease | None  # waits to be leased again
    fresh: Range | None  # the next shard that was never leased
    num_before: int  # samples that must be done before an epoch that `fresh` would begin
    num_out: int  # samples that were leased once and are not done
    num_free: int  # samples that can be leased before others must be done
    batch_size: int
    shard_size: int
    holders: Mapping[Key, Holder]
    pending: Mapping[Key, str]  # lost workers whose samples are not free yet, and why
    deadlines: Mapping[Key, float]  # of workers that the roster does not watch
    durations_s: Collection[float]  # of the last leases
    straggler_factor: float
    paces: Mapping[Key, WorkerPace]  # of holders
    per_s_of_all: float  # the sum of them


@dataclass(frozen=True, kw_only=True, slots=True)
class Leasing:
    code: str
    reason: str
    again: int | None = None  # this lease, again …
    most: int = 0  # … this many samples of it
    fresh: Range | None = None
    is_spared: bool = False  # something is free, but the others are through with it sooner
    silent: Key | None = None  # this worker's leases are void; decide again
    asked: tuple[Key, int] | None = None  # this worker is to give back what it has not begun of this lease
    is_end: bool = False
    next_look: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    code: str
    reason: str
    is_gone: bool = False  # it will never use its samples
    is_released: bool = False  # … and all that it used was reported: others may have the rest


def decide_lease(facts: LeaseFacts, now: float) -> Leasing:
    if facts.again is not None or (facts.fresh is not None and facts.num_before == 0):
        return _decide_free(facts, _share(facts, now))
    if facts.fresh is None and facts.num_out == 0:
        return Leasing(reason="all samples of all epochs are done", is_end=True, code="end")
    deadlines = {key: at for key, at in facts.deadlines.items() if key != facts.asker and _holds(facts, key)}
    silent = [key for key, at in deadlines.items() if at <= now]
    if silent:
        return Leasing(
            reason=f"{silent[0][0]} gave no sign of life for too long", silent=silent[0], code="holder-silent"
        )
    return _decide_straggler(facts, now, min(deadlines.values(), default=None))


def _decide_free(facts: LeaseFacts, share: FairShare) -> Leasing:
    if not share.most:
        return Leasing(reason=share.reason, is_spared=True, code="others-are-sooner")
    if facts.again is not None:
        reason = "samples of a lost or returned lease go first"
        return Leasing(reason=reason, again=facts.again.lease, most=share.most, code="again")
    assert facts.fresh is not None
    start, stop = facts.fresh
    return Leasing(reason="the next shard", fresh=(start, min(stop, start + share.most)), code="fresh")


def _share(facts: LeaseFacts, now: float) -> FairShare:
    pace, whole = facts.paces.get(facts.asker), facts.shard_size
    if pace is None:
        return FairShare(most=whole, reason="its pace is not known")
    own = Load(per_s=pace.per_s, num_held=facts.holders[facts.asker].num_held)
    if facts.num_free * own.per_s >= (own.num_held + 2 * whole) * facts.per_s_of_all:  # whatever the others hold
        return FairShare(most=whole, reason="there is plenty")
    others = [
        Load(per_s=pace.per_s, num_held=facts.holders[key].num_held)
        for key, pace in facts.paces.items()
        if key != facts.asker and key not in facts.pending
        if is_expected(pace, facts.holders[key].num_leased, now)
    ]
    return decide_share(own, others, num_free=facts.num_free, batch_size=facts.batch_size, shard_size=whole)


def decide_share(own: Load, others: Iterable[Load], *, num_free: int, batch_size: int, shard_size: int) -> FairShare:
    """`others`: all who are expected to ask for more. Somebody always gets some: the quickest, at the latest when all
    hold nothing."""
    team = [own, *others]
    per_s = sum(each.per_s for each in team)
    all_s = (num_free + sum(each.num_held for each in team)) / per_s
    own_s = (own.num_held + batch_size) / own.per_s
    if own_s > all_s + len(team) * batch_size / per_s + LEAST_S:
        reason = f"all is done in {all_s:.2f} s; with one batch more this worker would take {own_s:.2f} s"
        return FairShare(most=0, reason=reason)
    wanted = max((all_s * own.per_s - own.num_held) / 2, LEAST_S * own.per_s)
    most = min(max(int(wanted) // batch_size, 1) * batch_size, shard_size)
    return FairShare(most=most, reason=f"{num_free} samples are free, and all is done in {all_s:.2f} s")


def is_expected(pace: WorkerPace, num_leased: int, now: float) -> bool:
    """Whether a process with this many leased samples will ask for more. One that does something else for long is not
    counted on."""
    return now < pace.asked_at + max(ABSENT_S, 2 * num_leased / pace.per_s)


def _decide_straggler(facts: LeaseFacts, now: float, next_look: float | None) -> Leasing:
    is_usual_known = len(facts.durations_s) >= FEWEST_DURATIONS
    slow = [
        (lease.since, key, lease.lease)
        for key, holder in facts.holders.items()
        if is_usual_known and key != facts.asker and key not in facts.pending
        for lease in holder.leases.values()
        if not (lease.is_asked or lease.is_takeover)
    ]
    if not slow:
        return Leasing(code="waits", reason=_why_waiting(facts), next_look=next_look)
    since, key, lease = min(slow)
    usual_s = statistics.median(facts.durations_s)
    slow_at = since + facts.straggler_factor * usual_s
    if slow_at > now:
        return Leasing(code="waits", reason=_why_waiting(facts), next_look=min(slow_at, next_look or slow_at))
    why = f"{key[0]} has held lease {lease} for {now - since:.1f} s; {usual_s:.1f} s is usual"
    return Leasing(
        reason=f"{why}: asked to give back what it has not begun", asked=(key, lease), code="straggler-asked"
    )


def _holds(facts: LeaseFacts, key: Key) -> bool:
    return key not in facts.pending and key in facts.holders and bool(facts.holders[key].leases)


def _why_waiting(facts: LeaseFacts) -> str:
    out = {key: holder.worker for key, holder in facts.holders.items() if holder.leases}
    what = "the next epoch begins when they are done" if facts.fresh else "nothing else is left"
    reason = f"{facts.num_out} samples are leased to {listed(out.values())}; {what}"
    pending = [why for key, why in facts.pending.items() if key in out]
    return f"{reason}; {pending[0]}" if pending else reason


def decide_release(holder: Holder, roster: Roster, settled: int) -> Release:
    """Whether a worker's samples may be leased to others.

    What a lost worker used in steps that the others hold, they must report first: the next generation says when it
    has done so (`settled`). Samples that are not used in steps are free at once."""
    why = _why_gone(holder, roster)
    if why is None:
        return Release(reason=f"{holder.worker} is alive", code="alive")
    needed = roster.generation.number + _was_member(holder, roster)
    if holder.generation == 0 or settled >= needed:
        return Release(code="released", reason=why, is_gone=True, is_released=True)
    reason = f"{why}; generation {needed} is to say what was committed of its samples"
    return Release(code="waits-for-settling", reason=reason, is_gone=True)


def _why_gone(holder: Holder, roster: Roster) -> str | None:
    worker = roster.workers.get(holder.worker)
    if worker is None:
        return f"there is no {holder.worker}"
    if worker.status != ALIVE:
        return f"{holder.worker} is {worker.status}: {worker.reason}"
    if worker.incarnation and worker.incarnation != holder.incarnation:
        return f"{holder.worker} is another process now"
    if worker.attempt < roster.attempt.number or (roster.attempt.is_closed and not roster.is_regrouping):
        return f"{holder.worker} belongs to an attempt that is over"
    return None


def _was_member(holder: Holder, roster: Roster) -> bool:
    """Whether this very process is in the latest generation: then only the next one can tell what it committed."""
    generation, worker = roster.generation, roster.workers.get(holder.worker)
    if worker is None or holder.worker not in generation.ranks:
        return False
    is_present_process = worker.incarnation == holder.incarnation
    return (worker.announced_in < generation.number) == is_present_process
