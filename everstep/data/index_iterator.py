"""Give out record indices one by one, in whichever process they are asked for, batch by batch of torch's loader.

Which call of the loader a request is made in is seen on the stack: so a batch that is handed out is exactly one that
comes out, also after a loop that was broken off, and a loader with another batch size is told so. Without a loader of
torch's, each batch simply follows the one before."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Protocol

from everstep.errors import UsageError

_fetch_code: CodeType | None = None


class EndOfRecords(StopIteration):
    """The end of the data. torch raises it again in the main process; of a class that has a `message`, it does so
    without a cycle of references, which would keep the loader until some later garbage collection, and make ending its
    processes take 5 s for each."""

    message = "the end of the data"

    def __init__(self, message: str = message) -> None:
        super().__init__(message)


@dataclass(frozen=True, kw_only=True, slots=True)
class Obtained:
    """One batch, for whoever reads its records."""

    number: int
    indices: Sequence[int]
    is_ghost: bool


class BatchSource(Protocol):
    """Where a process gets its batches from."""

    def begin(self) -> None:
        """A new iteration of the loader."""
        ...

    def obtain(self, number: int) -> Obtained | None:
        """None: the end."""
        ...

    def abandon(self, number: int) -> None:
        """It will not come out."""
        ...

    def amend(self, number: int, failed: Sequence[tuple[int, str]]) -> None:
        """Of these, counted from its beginning, the records could not be read, and why."""
        ...

    def close(self) -> None: ...


class IndexBatches:
    """Batch after batch, for one iteration in one process, whose numbers are process, process + num_processes, …"""

    def __init__(self, source: BatchSource, *, process: int = 0, num_processes: int = 1) -> None:
        self._source, self._num_processes = source, num_processes
        self._number = process - num_processes
        source.begin()

    def next(self) -> Obtained | None:
        self._number += self._num_processes
        return self._source.obtain(self._number)

    def amend(self, failed: Sequence[tuple[int, str]]) -> None:
        self._source.amend(self._number, failed)

    def again(self) -> Obtained | None:
        """Another in place of one that had no record that could be read."""
        return self._source.obtain(self._number)

    def close(self) -> None:
        self._source.close()


class Taker:
    """`process` of `num_processes`: whose numbers are process, process + num_processes, …"""

    def __init__(self, source: BatchSource, batch_size: int, *, process: int = 0, num_processes: int = 1) -> None:
        self._source, self._batch_size = source, batch_size
        self._process, self._num_processes = process, num_processes
        self._loader: object = None  # torch's fetcher: there is one for each iteration in each process
        self._batch: object = None  # what torch reads with one call of it
        self._number: int | None = None
        self._left: list[int] = []  # the last is the next

    def next(self) -> int:
        loader, batch = _find_loader()
        if self._number is None or loader is not self._loader:
            self._begin(loader)
        if self._left and batch is not self._batch:  # it was broken off, and will not come out
            assert self._number is not None
            self._source.abandon(self._number)
            self._left = []
        if not self._left:
            self._check(batch)
            self._batch = batch
            self._left = self._next_batch()
        return self._left.pop()

    def _begin(self, loader: object) -> None:
        self._source.begin()
        self._loader = loader
        self._left = []
        self._number = self._process - self._num_processes

    def _next_batch(self) -> list[int]:
        assert self._number is not None
        self._number += self._num_processes
        found = self._source.obtain(self._number)
        if found is None:
            raise EndOfRecords
        return list(reversed(found.indices))

    def _check(self, batch: Any) -> None:
        if batch is None:
            return
        size = len(batch) if isinstance(batch, list) else 1
        if size != self._batch_size:
            raise UsageError(
                f"the loader reads a batch of {size}, the RecordIndexService has batch_size={self._batch_size}",
                hint="give both the same batch_size, and the dataset a __len__ of sys.maxsize",
                code="batch-size-differs",
            )


def _find_loader() -> tuple[object, object]:
    """torch's fetcher that is reading now, and the indices that it was given; None, None without one."""
    code = _code_of_fetch()
    frame: FrameType | None = sys._getframe(2)
    while code is not None and frame is not None:
        if frame.f_code is code:
            return frame.f_locals["self"], frame.f_locals["possibly_batched_index"]
        frame = frame.f_back
    return None, None


def _code_of_fetch() -> CodeType | None:
    global _fetch_code
    if _fetch_code is None and "torch.utils.data" in sys.modules:
        from torch.utils.data._utils import fetch

        _fetch_code = fetch._MapDatasetFetcher.fetch.__code__
    return _fetch_code
