"""From positions to records: which record of the dataset stands at a position of the order. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from everstep.data.permutation import Permutation
from everstep.wire import LeasePart


class Records:
    """The order of a dataset: as it is, or shuffled anew in each epoch."""

    def __init__(self, size: int, *, shuffle: bool, seed: int) -> None:
        self.size, self._shuffle, self._seed = size, shuffle, seed
        self._order: Permutation | None = None  # of the epoch that was asked for last

    def indices(self, parts: Iterable[LeasePart]) -> list[int]:
        return [index for part in parts for index in self._of_part(part)]

    def _of_part(self, part: LeasePart) -> Iterable[int]:
        epoch, start = divmod(part.start, self.size)  # a part lies in one epoch
        if not self._shuffle:
            return range(start, start + part.count)
        order = self._order  # several threads ask
        if order is None or order.epoch != epoch:
            order = self._order = Permutation(self.size, self._seed, epoch)
        found: list[int] = order.at(np.arange(start, start + part.count)).tolist()
        return found
