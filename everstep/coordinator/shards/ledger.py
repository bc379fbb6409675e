"""The ledger of one dataset: which samples are done, which are leased to whom, which are to be leased again.

A position counts samples through all epochs. Everything below `next` was leased once; of that, all is done or skipped
that no lease has left. So memory and store hold the leases that are out and nothing per sample or shard, whatever the
size. Changes thousands of times a second, so it is changed in place, by one thread, and remembers which rows of the
store's tables it touched. Decides nothing (`leasing`), and knows nothing of clocks, HTTP or SQL."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from everstep import wire
from everstep.coordinator.shards.leasing import HeldLease, Holder, Key, LeaseFacts, WorkerPace
from everstep.errors import Refused
from everstep.ranges import Range, Ranges, as_ranges, gaps, merged, size, within, without

KNOWN_DURATIONS = 64  # of leases, for what is usual
QUICKEST_S = 1e-6  # for a batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """A ledger, or what has changed in it, by the store's tables. The store adds the job and the dataset."""

    dataset: str
    kept: Mapping[str, Sequence[Mapping[str, Any]]]
    removed: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)  # their keys


class Leftover(NamedTuple):
    """Positions of a part that did not count."""

    part: wire.LeasePart | wire.FailedPart
    start: int
    stop: int


@dataclass(slots=True)
class _Touched:
    holders: set[Key] = field(default_factory=set)
    waiting: set[int] = field(default_factory=set)
    bad: set[int] = field(default_factory=set)


class ShardLedger:
    def __init__(self, rows: Rows, now: float = 0.0) -> None:
        (mark,) = rows.kept["datasets"]
        self.dataset, self.spec = rows.dataset, wire.DatasetSpec(**mark["spec"])
        self.next: int = mark["next"]  # the first position that was never leased
        self._next_lease: int = mark["next_lease"]
        self.settled: int = mark["settled"]  # the latest generation that has reported what was committed before it
        self.restored: str = mark["restored"]  # the latest request to restore
        holders = [Holder.from_row(row, now) for row in rows.kept.get("holders", ())]
        self.holders = {each.key: each for each in holders}
        waiting = [HeldLease(left=((row["start"], row["stop"]),), **row) for row in rows.kept.get("waiting_leases", ())]
        self.waiting = {each.lease: each for each in waiting}
        self.bad = {row["start"]: wire.BadShard(**row) for row in rows.kept.get("bad_shards", ())}
        self.pending: dict[Key, str] = {}
        self._paces: dict[Key, WorkerPace] = {}  # not kept: soon said again
        self._per_s_of_all = 0.0
        self._num_waiting = sum(size(each.left) for each in waiting)
        self._touched = _Touched()
        self._durations_s: deque[float] = deque(maxlen=KNOWN_DURATIONS)
        self._holder_of = {lease: each.key for each in self.holders.values() for lease in each.leases}
        self._out: Counter[int] = Counter()  # epoch → positions that were leased once and are not done
        for lease in self.leases():
            self._out[self.epoch(lease.start)] += size(lease.left)

    @classmethod
    def new(cls, dataset: str, spec: wire.DatasetSpec) -> ShardLedger:
        mark = {"spec": asdict(spec), "next": 0, "next_lease": 1, "settled": 0, "restored": ""}
        return cls(Rows(dataset=dataset, kept={"datasets": [mark]}))

    # --- what it says ---

    @property
    def total(self) -> int:
        return self.spec.size * self.spec.epochs

    @property
    def num_out(self) -> int:
        return self._out.total()

    @property
    def is_end(self) -> bool:
        return self.next == self.total and not self.num_out

    def epoch(self, position: int) -> int:
        return position // self.spec.size

    def leases(self) -> Iterable[HeldLease]:
        for holder in self.holders.values():
            yield from holder.leases.values()
        yield from self.waiting.values()

    def holder(self, key: Key) -> Holder:
        return self.holders.get(key) or Holder(worker=key[0], incarnation=key[1])

    def facts(self, asker: Key, deadlines: Mapping[Key, float], straggler_factor: float) -> LeaseFacts:
        fresh = (self.next, self._shard_stop(self.next)) if self.next < self.total else None
        is_strict = fresh is not None and not self.spec.is_overlapping and fresh[0] % self.spec.size == 0
        return LeaseFacts(
            asker=asker,
            again=next(iter(self.waiting.values()), None),
            fresh=fresh,
            num_before=self.num_out if is_strict else 0,
            num_out=self.num_out,
            num_free=self._num_waiting + (0 if fresh is None or (is_strict and self.num_out) else self._num_fresh),
            batch_size=self.spec.batch_size,
            shard_size=self._shard_size,
            holders=self.holders,
            pending=self.pending,
            deadlines=deadlines,
            durations_s=self._durations_s,
            straggler_factor=straggler_factor,
            paces=self._paces,
            per_s_of_all=self._per_s_of_all,
        )

    @property
    def _num_fresh(self) -> int:
        """Never leased, and not behind the end of an epoch that must be done first."""
        stop = self.total if self.spec.is_overlapping else (self.epoch(self.next) + 1) * self.spec.size
        return stop - self.next

    def epochs(self) -> list[wire.EpochView]:
        """Those that have begun and not ended."""
        latest = self.epoch(max(0, self.next - 1))
        is_open = self.next < min(self.total, (latest + 1) * self.spec.size)
        return [self._epoch_view(epoch) for epoch in sorted({*self._out, latest} if is_open else self._out)]

    def _epoch_view(self, epoch: int) -> wire.EpochView:
        start, stop = epoch * self.spec.size, min(self.next, (epoch + 1) * self.spec.size)
        waiting = sum(size(within(lease.left, start, stop)) for lease in self.waiting.values())
        skipped = size(within(self.skipped(), start, stop))
        return wire.EpochView(
            epoch=epoch,
            done=stop - start - self._out[epoch] - skipped,
            leased=self._out[epoch] - waiting,
            waiting=waiting,
            skipped=skipped,
        )

    def done(self) -> Ranges:
        """All that is done, merged."""
        out = merged([*(left for lease in self.leases() for left in lease.left), *self.skipped()])
        return gaps(out, 0, self.next)

    def skipped(self) -> Ranges:
        return merged((start, stop) for bad in self.bad.values() for start, stop in bad.skipped)

    def fatal(self, limit: int) -> str | None:
        """The sentence that stops the job, if a shard failed too often and must not be skipped."""
        if self.spec.on_bad_shard == wire.STOP:
            for bad in self.bad.values():
                if bad.failures >= limit:
                    return f"{self.named(bad.start)} failed {bad.failures} times, the last time because {bad.reason}"
        return None

    def named(self, position: int) -> str:
        """The shard of a position, for a sentence."""
        epoch = self.epoch(position)
        first, stop = self._shard_start(position), self._shard_stop(position)
        begins = epoch * self.spec.size
        return f"shard {first - begins} to {stop - begins} of epoch {epoch} of dataset {self.dataset}"

    # --- what happens to it ---

    def heard(self, key: Key, request: int, generation: int, refused: Sequence[wire.RefusedPart]) -> None:
        """This process has made this request, and what it brought was worked in."""
        known = self.holder(key)
        generation = max(known.generation, generation)
        self._put(replace(known, request=request, generation=generation, refused=tuple(refused)))

    def pace(self, key: Key, batch_s: float, now: float) -> None:
        """This process asks for more, and takes this long per batch."""
        self._forget_pace(key)
        self._paces[key] = WorkerPace(per_s=self.spec.batch_size / max(batch_s, QUICKEST_S), asked_at=now)
        self._per_s_of_all += self._paces[key].per_s

    def _forget_pace(self, key: Key) -> None:
        if known := self._paces.pop(key, None):
            self._per_s_of_all -= known.per_s

    def report(self, part: wire.LeasePart, by: Key, now: float, *, may_speak_for_others: bool) -> list[Leftover]:
        """Done. Parts that do not count are left over, and explained after all others are applied."""
        lease, counted = self._cut(part, by, may_speak_for_others=may_speak_for_others)
        self._take_out(counted)
        if lease is not None and part.lease not in self._holder_of:
            self._durations_s.append(now - lease.since)
        return _leftovers(part, counted)

    def take_back(self, part: wire.LeasePart, by: Key) -> list[Leftover]:
        """Not used: others may have it."""
        lease, returned = self._cut(part, by)
        for start, stop in returned:
            self._wait(start, stop, is_takeover=lease is not None and (lease.is_asked or lease.is_takeover))
        return _leftovers(part, returned)

    def fail(self, part: wire.FailedPart, by: Key, limit: int) -> list[Leftover]:
        """Could not be processed: tried again, or skipped once its shard failed too often."""
        _, failed = self._cut(part, by)
        if failed:
            self._count_failure(part.reason, failed, limit)
        return _leftovers(part, failed)

    def _count_failure(self, reason: str, failed: Ranges, limit: int) -> None:
        start = self._shard_start(failed[0][0])
        known = self.bad.get(start, wire.BadShard(start=start, failures=0, reason="", skipped=[]))
        bad = replace(known, failures=known.failures + 1, reason=reason)
        if bad.failures >= limit and self.spec.on_bad_shard == wire.SKIP:
            bad = replace(bad, skipped=_pairs(merged([*as_ranges(known.skipped), *failed])))
            self._take_out(failed)
        else:
            for a, b in failed:
                self._wait(a, b)
        self.bad[start] = bad
        self._touched.bad.add(start)

    def explain(self, leftovers: Sequence[Leftover]) -> list[wire.RefusedPart]:
        """Why parts did not count. All at once: who speaks for hundreds of others brings much that is known."""
        if not leftovers:
            return []
        out = sorted(
            [
                (start, stop, f"they are leased to {holder.worker} as lease {lease.lease}")
                for holder in self.holders.values()
                for lease in holder.leases.values()
                for start, stop in lease.left
            ]
            + [
                (start, stop, "they wait to be leased again")
                for each in self.waiting.values()
                for start, stop in each.left
            ]
            + [(start, stop, "they were skipped") for start, stop in self.skipped()]
            + [(self.next, sys.maxsize, f"nothing from {self.next} on was leased yet")]
        )
        return [_explained(each, out) for each in leftovers]

    def grant_again(self, number: int, key: Key, request: int, now: float, most: int) -> None:
        """Of samples that wait, at most `most`, up to the end of their shard."""
        lease = self.waiting[number]
        stop = min(self._shard_stop(lease.start), lease.start + most)
        self._touched.waiting.add(number)
        if stop < lease.stop:
            self.waiting[number] = replace(lease, start=stop, left=((stop, lease.stop),))
        else:
            del self.waiting[number]
        stop = min(stop, lease.stop)
        self._num_waiting -= stop - lease.start
        given = self._new(lease.start, stop, request=request, since=now, is_takeover=lease.is_takeover)
        self._hold(key, given)

    def grant_fresh(self, fresh: Range, key: Key, request: int, now: float) -> None:
        start, stop = fresh
        self._out[self.epoch(start)] += stop - start
        self._hold(key, self._new(start, stop, request=request, since=now))
        self.next = stop

    def ask_back(self, key: Key, number: int) -> None:
        holder = self.holders[key]
        asked = replace(holder.leases[number], is_asked=True)
        self.holders[key] = replace(holder, leases={**holder.leases, number: asked})  # not kept: asked again

    def free(self, key: Key) -> Ranges:
        """A process will not use what it holds: all that it has not reported waits for others."""
        holder = self.holders.pop(key)
        self._touched.holders.add(key)
        self.pending.pop(key, None)
        self._forget_pace(key)
        for lease in holder.leases.values():
            del self._holder_of[lease.lease]
            for start, stop in lease.left:
                self._wait(start, stop, is_takeover=lease.is_takeover)
        return merged(left for lease in holder.leases.values() for left in lease.left)

    def checkpoint(self) -> wire.ShardCheckpoint:
        return wire.ShardCheckpoint(
            size=self.spec.size,
            shuffle=self.spec.shuffle,
            seed=self.spec.seed,
            done=_pairs(self.done()),
            bad_shards=list(self.bad.values()),
        )

    def restore(self, request: str, checkpoint: wire.ShardCheckpoint) -> None:
        """From now on this is done and nothing else; no process holds a lease."""
        done, bad = self._checked(checkpoint)
        self._touched.waiting.update(self.waiting)
        self._touched.bad.update(self.bad, bad)
        for holder in list(self.holders.values()):
            self._put(replace(holder, leases={}))
        self.waiting, self.bad, self.pending, self._num_waiting = {}, bad, {}, 0
        self._holder_of, self._out = {}, Counter()
        over = merged([*done, *self.skipped()])
        self.next, self.restored = over[-1][1] if over else 0, request
        for start, stop in gaps(over, 0, self.next):
            self._open(start, stop)

    # --- what the store keeps ---

    def rows(self) -> Rows:
        """What changed since the last time."""
        touched, self._touched = self._touched, _Touched()
        mark = {"next": self.next, "next_lease": self._next_lease, "settled": self.settled, "restored": self.restored}
        kept = {
            "datasets": [{"spec": asdict(self.spec), **mark}],
            "holders": [self.holders[each].row() for each in touched.holders if each in self.holders],
            "waiting_leases": [self.waiting[each].row() for each in touched.waiting if each in self.waiting],
            "bad_shards": [asdict(self.bad[each]) for each in touched.bad if each in self.bad],
        }
        removed: dict[str, list[dict[str, Any]]] = {
            "holders": [{"worker": key[0], "incarnation": key[1]} for key in touched.holders - self.holders.keys()],
            "waiting_leases": [{"lease": each} for each in touched.waiting - self.waiting.keys()],
            "bad_shards": [{"start": each} for each in touched.bad - self.bad.keys()],
        }
        return Rows(dataset=self.dataset, kept=kept, removed=removed)

    # --- inside ---

    def _shard_start(self, position: int) -> int:
        within_epoch = position % self.spec.size
        return position - within_epoch % self._shard_size

    def _shard_stop(self, position: int) -> int:
        return min(self._shard_start(position) + self._shard_size, (self.epoch(position) + 1) * self.spec.size)

    @property
    def _shard_size(self) -> int:
        return self.spec.batch_size * (self.spec.minibatches_per_shard or 1)

    def _put(self, holder: Holder) -> None:
        self.holders[holder.key] = holder
        self._touched.holders.add(holder.key)

    def _hold(self, key: Key, lease: HeldLease) -> None:
        holder = self.holders[key]
        refused = holder.refused if lease.request == holder.request else ()
        leases = {**holder.leases, lease.lease: lease}
        self._put(replace(holder, leases=leases, request=max(holder.request, lease.request), refused=refused))
        self._holder_of[lease.lease] = key

    def _cut(
        self, part: wire.LeasePart | wire.FailedPart, by: Key, *, may_speak_for_others: bool = False
    ) -> tuple[HeldLease | None, Ranges]:
        """Take a part out of a lease: the lease as it was, and what was taken. Nothing, if it is not the caller's."""
        owner = self._holder_of.get(part.lease)
        if owner is None or (owner != by and not may_speak_for_others):
            return None, ()
        holder, stop = self.holders[owner], part.start + part.count
        lease = holder.leases[part.lease]
        left = without(lease.left, part.start, stop)
        if left != lease.left:
            leases = {**holder.leases, lease.lease: replace(lease, left=left)}
            if not left:
                del leases[lease.lease], self._holder_of[lease.lease]
            self._put(replace(holder, leases=leases))
        return lease, within(lease.left, part.start, stop)

    def _new(
        self, start: int, stop: int, *, request: int = 0, since: float = 0.0, is_takeover: bool = False
    ) -> HeldLease:
        number = self._next_lease
        self._next_lease += 1
        return HeldLease(
            lease=number,
            start=start,
            stop=stop,
            left=((start, stop),),
            request=request,
            is_takeover=is_takeover,
            since=since,
        )

    def _wait(self, start: int, stop: int, *, is_takeover: bool = False) -> None:
        lease = self._new(start, stop, is_takeover=is_takeover)
        self.waiting[lease.lease] = lease
        self._num_waiting += stop - start
        self._touched.waiting.add(lease.lease)

    def _open(self, start: int, stop: int) -> None:
        """Samples that were never done although later ones were; an epoch's end ends a range."""
        while start < stop:
            end = min(stop, (self.epoch(start) + 1) * self.spec.size)
            self._out[self.epoch(start)] += end - start
            self._wait(start, end)
            start = end

    def _take_out(self, ranges: Ranges) -> None:
        for start, stop in ranges:
            epoch = self.epoch(start)
            self._out[epoch] -= stop - start
            if not self._out[epoch]:
                del self._out[epoch]

    def _checked(self, checkpoint: wire.ShardCheckpoint) -> tuple[Ranges, dict[int, wire.BadShard]]:
        if differences := _differences(checkpoint, self.spec, "the checkpoint", ("size", "shuffle", "seed")):
            raise Refused(f"dataset {self.dataset} {differences}", code="checkpoint-differs")
        bad = {
            each.start: replace(each, skipped=_pairs(merged(self._range(pair) for pair in each.skipped)))
            for each in checkpoint.bad_shards
        }
        return merged(self._range(pair) for pair in checkpoint.done), bad

    def _range(self, pair: Sequence[int]) -> Range:
        if len(pair) != 2 or not 0 <= pair[0] < pair[1] <= self.total:
            raise Refused(
                f"{list(pair)[:3]} is not a range of the {self.total} positions of {self.dataset}",
                code="range-invalid",
            )
        return pair[0], pair[1]


def check_same(dataset: str, wanted: wire.DatasetSpec, known: wire.DatasetSpec) -> None:
    """A dataset has the numbers that it was first registered with."""
    if differences := _differences(wanted, known, "this worker's", wire.DatasetSpec.__dataclass_fields__):
        raise Refused(f"dataset {dataset} {differences}", code="dataset-differs")


def _differences(theirs: object, ours: wire.DatasetSpec, whose: str, names: Iterable[str]) -> str:
    names = [name for name in names if getattr(theirs, name) != getattr(ours, name)]
    known, said = (", ".join(f"{name}={getattr(each, name)}" for name in names) for each in (ours, theirs))
    return f"is registered with {known}; {whose} says {said}" if names else ""


def _pairs(ranges: Ranges) -> list[list[int]]:
    return [list(each) for each in ranges]


def _leftovers(part: wire.LeasePart | wire.FailedPart, counted: Ranges) -> list[Leftover]:
    return [Leftover(part, start, stop) for start, stop in gaps(counted, part.start, part.start + part.count)]


def _explained(leftover: Leftover, out: Sequence[tuple[int, int, str]]) -> wire.RefusedPart:
    part, start, stop = leftover
    # Ranges that are out do not overlap: the last one that begins before `stop` decides.
    at = bisect_left(out, (stop,)) - 1
    is_done = at < 0 or out[at][1] <= start
    why = "they are done already" if is_done else out[at][2]
    reason = f"positions {start} to {stop} of lease {part.lease}: {why}"
    return wire.RefusedPart(lease=part.lease, start=start, count=stop - start, reason=reason, is_done=is_done)
