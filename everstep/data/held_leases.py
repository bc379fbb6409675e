"""What this worker holds of the data, what it has used, and what it has still to report.

`HeldLeases`: leases, cut into batches when one is needed. A batch is made of samples of one epoch, of one lease or the
ends of several; samples that are not cut yet can be given back.

`LeaseReports`: reports, returns and failures, gathered until the next call to the lease source.

`Usage`: samples of committed steps that are not reported yet. All workers hold the same: each step's pulse carries what
every worker used in it, and a newcomer gets it with the state. So the samples that a lost worker used are known to all
that are left, one by one. A step is reported when the next one has proved that all hold it.

Pure: no clock, no lock, no call."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everstep.ranges import Ranges, merged, size, within, without
from everstep.wire import FailedPart, Lease, LeasePart

MOST_PARTS = 4096  # in one call


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordBatch:
    """What one call of a training function trains on: samples of one epoch. A ghost has none that count."""

    parts: tuple[LeasePart, ...]
    epoch: int
    is_ghost: bool = False
    repeats: tuple[LeasePart, ...] = ()  # of a ghost: whose records it shows

    @property
    def num_records(self) -> int:
        return sum(part.count for part in self.parts)

    @property
    def is_void(self) -> bool:
        """None of its records could be read: another will take its place."""
        return not self.parts and not self.is_ghost


class HeldLeases:
    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._leases: dict[int, Lease] = {}
        self._uncut: dict[int, Ranges] = {}
        self._tails: set[int] = set()  # epochs of which a batch may be short: no more will come

    @property
    def num_uncut(self) -> int:
        return sum(size(uncut) for uncut in self._uncut.values())

    @property
    def num_leases(self) -> int:
        return len(self._leases)

    @property
    def has_batch(self) -> bool:
        return self._ripe_epoch() is not None

    def num_whole(self) -> int:
        """Full batches that can be cut."""
        return sum(each // self._batch_size for each in self._uncut_by_epoch().values())

    def num_left(self, epoch: int) -> int:
        """Samples of this epoch that are held, cut or not, and not reported."""
        return sum(stop - start for each in self._leases.values() if each.epoch == epoch for start, stop in each.left)

    def update(self, leases: Iterable[Lease]) -> int:
        """Take over the coordinator's list of leases; returns how many are new. Leases missing from it are lost."""
        known, self._leases = self._leases, {each.lease: each for each in leases}
        for gone in known.keys() - self._leases.keys():
            self._uncut.pop(gone, None)
        for number, lease in self._leases.items():
            left = merged((start, stop) for start, stop in lease.left)
            if number not in known:
                self._uncut[number] = left
                self._tails.discard(lease.epoch)
            elif number in self._uncut:
                self._uncut[number] = tuple(piece for a, b in left for piece in within(self._uncut[number], a, b))
        return len(self._leases.keys() - known.keys())

    def forget(self) -> None:
        """All leases are void."""
        self._leases, self._uncut, self._tails = {}, {}, set()

    def holds(self, parts: Iterable[LeasePart]) -> bool:
        return all(self._holds(part) for part in parts)

    def cut(self) -> RecordBatch | None:
        """The next batch; a short one only of an epoch that ends here (`end_epoch`)."""
        epoch = self._ripe_epoch()
        return None if epoch is None else self._cut(epoch, self._batch_size)

    def put_back(self, parts: Iterable[LeasePart]) -> None:
        """RecordBatch, but not used: to be cut again. Parts that are not held any more are forgotten."""
        for part in parts:
            if self._holds(part):
                uncut = self._uncut.get(part.lease, ())
                self._uncut[part.lease] = merged([*uncut, (part.start, part.start + part.count)])

    def take_out(self, leases: Iterable[int] | None = None) -> tuple[LeasePart, ...]:
        """All of these leases, or of all, that is not cut: it will not be used here."""
        taken = [(number, self._uncut.pop(number, ())) for number in (list(self._uncut) if leases is None else leases)]
        return tuple(LeasePart(lease=number, start=a, count=b - a) for number, uncut in taken for a, b in uncut)

    def remainders(self) -> list[int]:
        """Epochs of which fewer samples than a batch are held uncut, and that do not end here (`end_epoch`)."""
        found = self._uncut_by_epoch()
        return [epoch for epoch, number in found.items() if number < self._batch_size and epoch not in self._tails]

    def overtaken(self) -> list[int]:
        """Of those, the ones before an epoch that has begun."""
        latest = max((lease.epoch for lease in self._leases.values()), default=0)
        return [epoch for epoch in self.remainders() if epoch < latest]

    def end_epoch(self, epoch: int) -> None:
        """No more will come of this epoch: what is left of it may be cut as a short batch."""
        self._tails.add(epoch)

    def take_remainder(self, epoch: int) -> RecordBatch:
        return self._cut(epoch, self._batch_size - 1)

    def _cut(self, epoch: int, number: int) -> RecordBatch:
        parts: list[LeasePart] = []
        for lease in [each for each in self._uncut if self._leases[each].epoch == epoch]:
            for start, stop in self._uncut[lease]:
                count = min(number, stop - start)
                if count:
                    parts.append(LeasePart(lease=lease, start=start, count=count))
                    number -= count
        for part in parts:
            self._uncut[part.lease] = without(self._uncut[part.lease], part.start, part.start + part.count)
        self._uncut = {lease: uncut for lease, uncut in self._uncut.items() if uncut}
        return RecordBatch(parts=tuple(parts), epoch=epoch)

    def _uncut_by_epoch(self) -> Counter[int]:
        found: Counter[int] = Counter()
        for lease, uncut in self._uncut.items():
            if uncut:
                found[self._leases[lease].epoch] += size(uncut)
        return found

    def _ripe_epoch(self) -> int | None:
        ripe = [e for e, number in self._uncut_by_epoch().items() if number >= self._batch_size or e in self._tails]
        return min(ripe, default=None)

    def _holds(self, part: LeasePart) -> bool:
        lease = self._leases.get(part.lease)
        return lease is not None and any(a <= part.start and part.start + part.count <= b for a, b in lease.left)


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseReport:
    """The content of one call."""

    done: tuple[LeasePart, ...] = ()
    returned: tuple[LeasePart, ...] = ()
    failed: tuple[FailedPart, ...] = ()
    settles: bool = False
    on_durable: tuple[Callable[[], None], ...] = ()
    is_urgent: bool = False

    def __add__(self, more: LeaseReport) -> LeaseReport:
        return LeaseReport(
            done=joined((*self.done, *more.done)),
            returned=self.returned + more.returned,
            failed=self.failed + more.failed,
            settles=self.settles or more.settles,
            on_durable=self.on_durable + more.on_durable,
            is_urgent=self.is_urgent or more.is_urgent,
        )

    @property
    def is_empty(self) -> bool:
        return self == LeaseReport()


class LeaseReports:
    def __init__(self) -> None:
        self.content = LeaseReport()
        self.since = 0.0  # when the oldest of it came

    def add(self, message: LeaseReport, now: float) -> None:
        if self.content.is_empty:
            self.since = now
        self.content = self.content + message

    def take(self) -> LeaseReport:
        """The content of the next call. Only the last of several settles, and makes all durable."""
        content = self.content
        if len(content.done) > MOST_PARTS:
            self.content = replace(content, done=content.done[MOST_PARTS:])
            return LeaseReport(done=content.done[:MOST_PARTS])
        self.content = LeaseReport()
        return content


def joined(parts: Iterable[LeasePart]) -> tuple[LeasePart, ...]:
    """The same samples in as few parts as possible, each once."""
    found: list[LeasePart] = []
    for part in sorted(parts, key=lambda each: (each.lease, each.start)):
        last = found[-1] if found else None
        if last is not None and last.lease == part.lease and part.start <= last.start + last.count:
            stop = max(last.start + last.count, part.start + part.count)
            found[-1] = LeasePart(lease=last.lease, start=last.start, count=stop - last.start)
        else:
            found.append(part)
    return tuple(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class UsageNote:
    """One worker's note with a step."""

    used: tuple[LeasePart, ...]
    reported: int  # through this step, as far as it knows
    is_end: bool  # the coordinator has reported that all samples are done

    def pack(self) -> bytes:
        used = [[part.lease, part.start, part.count] for part in self.used]
        return json.dumps([used, self.reported, self.is_end], separators=(",", ":")).encode()

    @classmethod
    def unpack(cls, raw: bytes) -> UsageNote:
        used, reported, is_end = json.loads(raw)
        return cls(used=_unpacked(used), reported=reported, is_end=is_end)


class Usage:
    def __init__(self) -> None:
        self.mine: list[LeasePart] = []  # this worker's, in the step under way
        self._steps: dict[int, tuple[LeasePart, ...]] = {}  # by committed step, of all workers
        self._reported = 0

    def committed(self, step: int, notes: Sequence[UsageNote]) -> None:
        self._steps[step] = tuple(part for note in notes for part in note.used)
        self.mine.clear()
        self.heard(notes)

    def heard(self, notes: Sequence[UsageNote]) -> None:
        self.reported(max(note.reported for note in notes))
        self._steps = {number: parts for number, parts in self._steps.items() if number > self._reported}

    def reported(self, step: int) -> None:
        """The coordinator knows of all steps through this one. From any thread."""
        self._reported = max(self._reported, step)

    def through(self, step: int) -> list[LeasePart]:
        """The parts still to report, of the steps through this one."""
        return [part for number, parts in self._steps.items() if self._reported < number <= step for part in parts]

    def note(self, *, is_end: bool) -> UsageNote:
        return UsageNote(used=tuple(self.mine), reported=self._reported, is_end=is_end)

    def state_dict(self) -> dict[str, Any]:
        steps = [[step, [[p.lease, p.start, p.count] for p in parts]] for step, parts in sorted(self._steps.items())]
        return {"steps": steps, "reported": self._reported}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = {step: _unpacked(parts) for step, parts in state["steps"]}
        self._reported = state["reported"]
        self.mine.clear()


def _unpacked(values: Iterable[Sequence[int]]) -> tuple[LeasePart, ...]:
    return tuple(LeasePart(lease=lease, start=start, count=count) for lease, start, count in values)
