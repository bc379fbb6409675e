"""What this worker holds of the data: leases, cut into batches when one is needed.

A batch is made of samples of one epoch, of one lease or the ends of several. What is not cut yet can be given back.
Pure: no clock, no lock, no call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from everstep.ranges import Ranges, merged, size, within, without
from everstep.wire import Lease, LeasePart


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """The samples of one batch."""

    parts: tuple[LeasePart, ...]
    epoch: int

    @property
    def num_records(self) -> int:
        return sum(part.count for part in self.parts)


class Stock:
    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._leases: dict[int, Lease] = {}
        self._uncut: dict[int, Ranges] = {}
        self._tails: set[int] = set()  # epochs of which a batch may be short, for want of more

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
        """The coordinator's word on what is held; how many leases are new. What is not among them is not ours."""
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
        self._leases, self._uncut = {}, {}
        self._tails.clear()

    def holds(self, parts: Iterable[LeasePart]) -> bool:
        return all(self._holds(part) for part in parts)

    def cut(self) -> Cut | None:
        """The next batch; a short one only of an epoch that has been said to end here."""
        epoch = self._ripe_epoch()
        return None if epoch is None else self._cut(epoch, self._batch_size)

    def put_back(self, parts: Iterable[LeasePart]) -> None:
        """Cut, but not used: to be cut again. Parts that are not held any more are forgotten."""
        for part in parts:
            if self._holds(part):
                uncut = self._uncut.get(part.lease, ())
                self._uncut[part.lease] = merged([*uncut, (part.start, part.start + part.count)])

    def take_out(self, leases: Iterable[int]) -> list[LeasePart]:
        """All of these leases that is not cut: it will not be used here."""
        return [part for number in leases for part in _parts(number, self._uncut.pop(number, ()))]

    def take_out_all(self) -> list[LeasePart]:
        return self.take_out(list(self._uncut))

    def remainders(self) -> list[int]:
        """Epochs of which fewer samples than a batch are held uncut, and that have not been said to end here."""
        found = self._uncut_by_epoch()
        return [epoch for epoch, number in found.items() if number < self._batch_size and epoch not in self._tails]

    def overtaken(self) -> list[int]:
        """Of those, the ones before an epoch that has begun."""
        latest = max((lease.epoch for lease in self._leases.values()), default=0)
        return [epoch for epoch in self.remainders() if epoch < latest]

    def end_epoch(self, epoch: int) -> None:
        """No more will come of this epoch: what is left of it may be cut as a short batch."""
        self._tails.add(epoch)

    def take_remainder(self, epoch: int) -> Cut:
        return self._cut(epoch, self._batch_size - 1)

    def _cut(self, epoch: int, number: int) -> Cut:
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
        return Cut(parts=tuple(parts), epoch=epoch)

    def _uncut_by_epoch(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for lease, uncut in self._uncut.items():
            if number := size(uncut):
                epoch = self._leases[lease].epoch
                found[epoch] = found.get(epoch, 0) + number
        return found

    def _ripe_epoch(self) -> int | None:
        ripe = [e for e, number in self._uncut_by_epoch().items() if number >= self._batch_size or e in self._tails]
        return min(ripe, default=None)

    def _holds(self, part: LeasePart) -> bool:
        lease = self._leases.get(part.lease)
        return lease is not None and any(a <= part.start and part.start + part.count <= b for a, b in lease.left)


def _parts(lease: int, ranges: Ranges) -> list[LeasePart]:
    return [LeasePart(lease=lease, start=start, count=stop - start) for start, stop in ranges]
