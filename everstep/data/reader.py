"""Read micro-batches ahead by torch's DataLoader, and follow the plan: what a new generation needs, and nothing else.

torch's loader asks for batches of indices as it goes and gives the data back in the same order. Batches
that turn out not to be needed are dropped when they arrive; the ones needed instead are requested next. Worker
processes stay."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from everstep.data.epoch_order import BatchKey, EpochOrder, Schedule
from everstep.data.randomness import KeyedDataset, Request


class Requests:
    """torch's batch sampler: which micro-batch to read next. May give more after it had nothing to give."""

    def __init__(self, order: EpochOrder) -> None:
        self.order = order
        self.asked: deque[BatchKey] = deque()  # being read, in order
        self.kept: dict[BatchKey, Any] = {}  # read before they were wanted
        self._schedule: Schedule | None = None
        self._number = 0  # of the schedule's micro-batches so far
        self._next: tuple[BatchKey, range] | None = None  # to be read next, and its places in the epoch

    def follow(self, schedule: Schedule, first: BatchKey) -> None:
        """A new schedule; `first` may be none of its micro-batches."""
        self._schedule, self._number = schedule, 0
        self.kept = {key: batch for key, batch in self.kept.items() if key == first or self.needs(key)}
        is_coming = first in self.kept or first in self.asked
        self._next = self._find_next() if is_coming else (first, self.order.span(first.position, first.micro_batch))

    def needs(self, key: BatchKey) -> bool:
        assert self._schedule is not None
        return self._schedule.needs(key)

    def is_coming(self, key: BatchKey) -> bool:
        return (self._next is not None and key == self._next[0]) or key in self.asked or key in self.kept

    def __len__(self) -> int:
        return self.order.num_batches

    def __iter__(self) -> Iterator[Request]:
        return self

    def __next__(self) -> Request:
        if self._next is None:
            raise StopIteration
        key, span = self._next
        self.asked.append(key)
        self._next = self._find_next()
        return self.order.indices(key.epoch, span), key.epoch, span.start

    def _find_next(self) -> tuple[BatchKey, range] | None:
        """The schedule's next micro-batch that has samples and is not being read yet."""
        assert self._schedule is not None
        while (found := self._schedule.key(self._number)) is not None:
            self._number += 1
            if found not in self.asked and found not in self.kept:
                span = self.order.span(found.position, found.micro_batch)
                if span:
                    return found, span
        return None


class InProcessSource:
    """A source that reads in this process, when it is asked: torch's would do the same with more overhead."""

    def __init__(self, dataset: KeyedDataset, requests: Requests) -> None:
        self._dataset = dataset
        self._requests = requests

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._dataset.__getitems__(next(self._requests))


class MicroBatchReader:
    """The data of one epoch's micro-batches, by key. `source` is a loader that reads what `requests` asks for."""

    def __init__(self, source: Iterable[Any], requests: Requests) -> None:
        requests.asked.clear()
        requests.kept.clear()
        self._source = source
        self._requests = requests
        self._iterator: Iterator[Any] | None = None
        self._dealt = (-1, 0)

    def get(self, wanted: BatchKey, dealt: tuple[int, int], make_schedule: Callable[[], Schedule]) -> Any:
        requests = self._requests
        if dealt != self._dealt or not requests.is_coming(wanted):
            self._dealt = dealt
            requests.follow(make_schedule(), wanted)
        while wanted not in requests.kept:
            key, batch = self._receive()
            if key == wanted or (key is not None and requests.needs(key)):
                requests.kept[key] = batch
        return requests.kept.pop(wanted)

    def _receive(self) -> tuple[BatchKey | None, Any]:
        if self._iterator is None:
            self._requests.asked.clear()
            self._iterator = iter(self._source)
        try:
            batch = next(self._iterator)
        except StopIteration as end:
            if self._requests.asked:
                raise RuntimeError("the dataset or the collate_fn raised StopIteration") from end
            self._iterator = None  # it had come to the epoch's end, and now something is wanted again
            return None, None
        return self._requests.asked.popleft(), batch
