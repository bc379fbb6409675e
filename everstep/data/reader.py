"""Read leaves ahead by torch's DataLoader, and follow the plan: what a new generation needs, and nothing else.

torch's loader asks for batches of indices as it goes and gives the data back in the same order. What was asked for and
is no longer needed is thrown away when it comes; what is needed anew is asked for next. Worker processes go on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils import data

from everstep.data.order import Key, Order, Schedule
from everstep.data.randomness import Request


class Requests:
    """torch's batch sampler: which leaf to read next. May give more after it had nothing to give."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.asked: deque[Key] = deque()  # being read, in order
        self._schedule: Schedule | None = None
        self._number = 0  # of the schedule's next leaf
        self._first: Key | None = None  # to be read before all others

    def follow(self, schedule: Schedule, first: Key) -> None:
        """A new schedule; `first` may be none of its leaves."""
        self._schedule, self._number, self._first = schedule, 0, first

    def needs(self, key: Key) -> bool:
        assert self._schedule is not None
        return self._schedule.needs(key)

    def is_coming(self, key: Key) -> bool:
        if key in self.asked or key == self._first:
            return True
        return self._schedule is not None and self._schedule.key(self._number) == key

    def __len__(self) -> int:
        return self.order.num_batches

    def __iter__(self) -> Iterator[Request]:
        return self

    def __next__(self) -> Request:
        key = self._take()
        while key in self.asked:
            key = self._take()
        if key is None:
            raise StopIteration
        span = self.order.span(key.position, key.leaf)
        self.asked.append(key)
        return Request(indices=self.order.indices(key.epoch, span), epoch=key.epoch, position=span.start)

    def _take(self) -> Key | None:
        """The next leaf to be read, void ones left out."""
        if (first := self._first) is not None:
            self._first = None
            return first
        assert self._schedule is not None
        while (key := self._schedule.key(self._number)) is not None:
            self._number += 1
            if self.order.span(key.position, key.leaf):
                return key
        return None


class LeafReader:
    """The data of one epoch's leaves, by key. `source` is a loader that reads what `requests` asks for."""

    def __init__(self, source: data.DataLoader[Any], requests: Requests) -> None:
        self._source = source
        self._requests = requests
        self._iterator: Iterator[Any] | None = None
        self._kept: dict[Key, Any] = {}  # read before it was wanted
        self._generation = -1

    def get(self, wanted: Key, generation: int, make_schedule: Callable[[], Schedule]) -> Any:
        requests = self._requests
        if generation != self._generation or not (wanted in self._kept or requests.is_coming(wanted)):
            self._generation = generation
            requests.follow(make_schedule(), wanted)
            self._kept = {key: batch for key, batch in self._kept.items() if key == wanted or requests.needs(key)}
        while wanted not in self._kept:
            key, batch = self._receive()
            if key == wanted or (key is not None and requests.needs(key)):
                self._kept[key] = batch
        return self._kept.pop(wanted)

    def _receive(self) -> tuple[Key | None, Any]:
        if self._iterator is None:
            self._requests.asked.clear()
            self._iterator = iter(self._source)
        try:
            batch = next(self._iterator)
        except StopIteration:
            self._iterator = None  # it had come to the epoch's end, and now something is wanted again
            return None, None
        return self._requests.asked.popleft(), batch
