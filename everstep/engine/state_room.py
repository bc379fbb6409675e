"""Memory for a state that arrives.

Fresh pages can cost more than what is written to them, so a newcomer gets them before the others wait for it: it makes
a `StateRoom` while it rehearses, as large as the state of those that train."""

from __future__ import annotations

import mmap
import weakref

import torch
from torch import Tensor

SMALL_BYTES = 256 << 10


class StateRoom:
    """Pieces of one run of pages. The pages of a piece are given back when its tensor is gone, whatever becomes of the
    others: an optimizer keeps its tensors, the weights are copied into the model."""

    def __init__(self, num_bytes: int) -> None:
        self._memory = _pages(in_pages(max(num_bytes, 1)))
        self._num_taken = 0
        torch.frombuffer(self._memory, dtype=torch.uint8).zero_()  # all pages are there now

    def take(self, size: int) -> Tensor:
        """Memory of this size: from here, as long as there is some."""
        start, end = self._num_taken, self._num_taken + in_pages(size)
        if size < SMALL_BYTES or end > len(self._memory):
            return room(size)
        self._num_taken = end
        piece = memoryview(self._memory)[start : start + size]
        weakref.finalize(piece, self._memory.madvise, mmap.MADV_DONTNEED, start, end - start).atexit = False
        return torch.frombuffer(piece, dtype=torch.uint8)

    def give_back(self) -> None:
        """Whatever was not taken."""
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
