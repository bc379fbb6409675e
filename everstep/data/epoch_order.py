"""The order of an epoch's samples, and its cut into global batches and micro-batches.

Sample number p of an epoch is the same for every number of workers and after every resume; a global batch is the next
`batch_size × micro-batches` of them, the last one what is left, spread over the micro-batches in equal parts. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from everstep.data.permutation import Permutation


@dataclass(frozen=True, kw_only=True)
class EpochOrder:
    size: int  # samples of the dataset
    batch_size: int  # of a micro-batch
    micro_batches: int
    shuffle: bool
    seed: int
    drop_last: bool = False  # a last global batch that is not full

    @cached_property
    def global_batch(self) -> int:
        return self.batch_size * self.micro_batches

    @property
    def num_batches(self) -> int:
        """Global batches of a whole epoch."""
        return self.size // self.global_batch if self.drop_last else -(-self.size // self.global_batch)

    def samples_at(self, position: int) -> int:
        """How many samples the global batch that begins there has; 0: the epoch is over."""
        left = max(0, self.size - position)
        return 0 if self.drop_last and left < self.global_batch else min(left, self.global_batch)

    def records(self, epoch: int, position: int) -> int:
        """Samples of all global batches up to there, from the first epoch on."""
        per_epoch = self.num_batches * self.global_batch if self.drop_last else self.size
        return epoch * per_epoch + position

    def span(self, position: int, micro_batch: int) -> range:
        """The places in the epoch of one micro-batch of the global batch that begins at `position`."""
        samples = self.samples_at(position)
        if samples == self.global_batch:
            start = position + micro_batch * self.batch_size
            return range(start, start + self.batch_size)
        # As few parts as can be, so that none is tiny (batch norm needs two samples), on micro-batches that lie far
        # apart, so that different workers have them. Micro-batch 0 always has one.
        parts = -(-samples // self.batch_size)
        part = -(-micro_batch * parts // self.micro_batches)
        if part >= parts or part * self.micro_batches // parts != micro_batch:
            return range(position, position)
        return range(position + part * samples // parts, position + (part + 1) * samples // parts)

    def void_micro_batches(self, position: int) -> tuple[int, ...]:
        """Those without samples, in a last global batch that is not full."""
        if self.samples_at(position) == self.global_batch:
            return ()
        return tuple(micro_batch for micro_batch in range(self.micro_batches) if not self.span(position, micro_batch))

    def indices(self, epoch: int, span: range) -> list[int]:
        """Which samples of the dataset stand at these places."""
        if not self.shuffle:
            return list(span)
        found: list[int] = []
        for number in range(span.start // _BLOCK, (span.stop - 1) // _BLOCK + 1):
            block, start = _block(self.size, self.seed, epoch, number), number * _BLOCK
            found += block[max(span.start - start, 0) : span.stop - start].tolist()
        return found


_BLOCK = 2**13  # places whose samples are worked out together: a few at a time would cost as much


@lru_cache(maxsize=4)
def _block(size: int, seed: int, epoch: int, number: int) -> NDArray[np.int64]:
    return Permutation(size, seed, epoch)[number * _BLOCK : min((number + 1) * _BLOCK, size)]


class BatchKey(NamedTuple):
    """One micro-batch's data: of the global batch of this epoch that begins at `position`."""

    epoch: int
    position: int
    micro_batch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """What one worker will need, from a given step of a given generation on, if nothing happens."""

    order: EpochOrder
    epoch: int
    position: int
    todo: tuple[int, ...]  # micro-batches of the step at `position`
    run: tuple[int, ...]  # micro-batches of each further step

    def key(self, number: int) -> BatchKey | None:
        """The number-th micro-batch that is needed; None: the epoch is over."""
        if number < len(self.todo):
            return BatchKey(self.epoch, self.position, self.todo[number])
        steps, place = divmod(number - len(self.todo), len(self.run))
        position = self.position + (steps + 1) * self.order.global_batch
        if not self.order.samples_at(position):
            return None
        return BatchKey(self.epoch, position, self.run[place])

    def needs(self, key: BatchKey) -> bool:
        if key.epoch != self.epoch or key.position < self.position:
            return False
        return key.micro_batch in (self.todo if key.position == self.position else self.run)
