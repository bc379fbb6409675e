"""Blocks of memory that can grow, give back what they need no more, and be at hand before they are needed.

A block is private to this process, or an anonymous file that another process holds too. Touching pages takes several
times as long as copying into them, so it is done ahead, in pieces and without the GIL. Knows nothing of torch."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from collections.abc import Callable

PAGE_BYTES = 4096
_STEP_BYTES = 64 << 20  # a block grows by multiples of this: a state that grows a little needs no new mapping
_PIECE_BYTES = 8 << 20
_POPULATE_WRITE, _REMOVE, _DONTNEED = 23, 9, 4  # of madvise; the first since Linux 5.14
_F_ADD_SEALS, _F_SEAL_SHRINK = 1033, 2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class GrowingBlock:
    """`view` is its memory now. Whoever holds a view of before a `grow` keeps that memory alive, to no effect."""

    def __init__(self, descriptor: int | None = None) -> None:
        """The file is ours from now on; without one the memory is private."""
        self._descriptor = descriptor
        self._touched_bytes = 0
        self._map: mmap.mmap | None = None
        self.size_bytes = 0
        self.pinned_bytes = 0  # by pinning.py …
        self.before_unmap: Callable[[], object] = lambda: None  # … which must undo it
        self.view = memoryview(b"")
        if descriptor is not None and (size := os.fstat(descriptor).st_size):
            self._set_map(size)

    @property
    def is_shared(self) -> bool:
        return self._descriptor is not None

    def grow(self, size_bytes: int) -> bool:
        """Hold at least so much. True: the view has changed. What a private block held is lost."""
        if size_bytes <= self.size_bytes:
            return False
        size = -(-size_bytes // _STEP_BYTES) * _STEP_BYTES if size_bytes > _STEP_BYTES else _aligned(size_bytes)
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, size)
        self._set_map(size)
        return True

    def touch(self, size_bytes: int) -> None:
        """Have the first so many bytes at hand. What they hold does not change, so it may be done at any time."""
        view = self.view
        address = _address(view)
        end = min(_aligned(size_bytes), len(view))
        for start in range(self._touched_bytes, end, _PIECE_BYTES):
            size = min(_PIECE_BYTES, end - start)
            if _libc.madvise(address + start, size, _POPULATE_WRITE) != 0:
                return  # an older kernel: pages come when they are used
            if view is not self.view:
                return
            self._touched_bytes = start + size

    def give_back(self, beyond_bytes: int) -> None:
        """Nothing beyond is needed any more; it reads as zeros."""
        start = _aligned(beyond_bytes)
        if start < self._touched_bytes:
            _libc.madvise(self.address + start, self.size_bytes - start, _REMOVE if self.is_shared else _DONTNEED)
            self._touched_bytes = start

    @property
    def address(self) -> int:
        return _address(self.view)

    def close(self) -> None:
        self._unpin()
        self.view, self._map, self.size_bytes = memoryview(b""), None, 0
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _unpin(self) -> None:
        self.before_unmap()
        self.before_unmap, self.pinned_bytes = lambda: None, 0

    def _set_map(self, size: int) -> None:
        self._unpin()
        if self._descriptor is not None:
            self._map = mmap.mmap(self._descriptor, size)
        else:
            self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._touched_bytes, self.size_bytes, self.view = 0, size, memoryview(self._map)


def shared_file() -> int:
    """An anonymous file that can grow and never shrink: who reads it cannot be hurt by who writes it.

    It is not in /dev/shm, so that one's size, 64 MB in many containers, does not matter."""
    descriptor = os.memfd_create("everstep", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(descriptor, _F_ADD_SEALS, _F_SEAL_SHRINK)
    return descriptor


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view)) if len(view) else 0


def _aligned(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES
