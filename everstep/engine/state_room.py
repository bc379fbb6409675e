"""Memory for a state that arrives.

Fresh pages can cost more than what is written to them, so a newcomer gets them before the others wait for it: it makes
a `StateRoom` when it has rehearsed, as large as the state of the workers that train."""

from __future__ import annotations

import mmap
import threading
import weakref

import torch
from torch import Tensor

SMALL_BYTES = 256 << 10
_KEPT_S = 60.0  # a spare may wait for hours, and the workers beside it need the memory


class StateRoom:
    """Pieces of one run of pages. The pages of a piece are given back when its tensor is gone, whatever becomes of the
    others: an optimizer keeps its tensors, the weights are copied into the model. Thread-safe."""

    def __init__(self, num_bytes: int, kept_s: float = _KEPT_S) -> None:
        """All pages are there when this returns. Those that are not taken within `kept_s` are given back."""
        self._memory = _pages(in_pages(max(num_bytes, 1)))
        self._num_taken = 0
        self._lock = threading.Lock()
        torch.frombuffer(self._memory, dtype=torch.uint8).zero_()
        self._timer = threading.Timer(kept_s, self.give_back)
        self._timer.daemon = True
        self._timer.start()

    def take(self, size: int) -> Tensor:
        """Memory of this size: from here, as long as there is some."""
        with self._lock:
            start, end = self._num_taken, self._num_taken + in_pages(size)
            if size < SMALL_BYTES or end > len(self._memory):
                return room(size)
            self._num_taken = end
        piece = memoryview(self._memory)[start : start + size]
        weakref.finalize(piece, self._memory.madvise, mmap.MADV_DONTNEED, start, end - start).atexit = False
        return torch.frombuffer(piece, dtype=torch.uint8)

    def give_back(self) -> None:
        """Everything that was not taken."""
        self._timer.cancel()
        with self._lock:
            if self._num_taken < len(self._memory):
                self._memory.madvise(mmap.MADV_DONTNEED, self._num_taken)
                self._num_taken = len(self._memory)


def room(size: int) -> Tensor:
    """Fresh memory of this size."""
    if size < SMALL_BYTES:
        return torch.empty(size, dtype=torch.uint8)
    return torch.frombuffer(_pages(size), dtype=torch.uint8)


def in_pages(size: int) -> int:
    """The size of all pages that this many bytes need."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _pages(size: int) -> mmap.mmap:
    """Huge ones, if possible: getting small pages costs more than filling them."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
