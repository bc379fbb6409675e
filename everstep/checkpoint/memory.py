"""Memory for copies of a state: blocks that can grow and shrink, and how much of it the machine can spare.

A block is private to this process, or an anonymous file that another process holds too. Touching pages takes several
times as long as copying into them, so it is done ahead, in pieces and without the GIL. How many copies fit is a pure
decision; the facts come from /proc and the limits of this process's cgroups, of both kinds. Knows nothing of torch."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

PAGE_BYTES = 4096
_STEP_BYTES = 64 << 20  # a block grows by multiples of this: a state that grows a little needs no new mapping
_PIECE_BYTES = 8 << 20
_POPULATE_WRITE, _REMOVE, _DONTNEED = 23, 9, 4  # of madvise; the first since Linux 5.14
_F_ADD_SEALS, _F_SEAL_SHRINK = 1033, 2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class GrowingBlock:
    """`view` is its memory now. A view from before a `grow` keeps the old memory alive, to no effect."""

    def __init__(self, descriptor: int | None = None) -> None:
        """The file is ours from now on; without one the memory is private."""
        self._descriptor = descriptor
        self._touched_bytes = 0
        self._map: mmap.mmap | None = None
        self.size_bytes = 0
        self.pinned_bytes = 0  # by copier.pin …
        self.before_unmap: Callable[[], object] = lambda: None  # … which must undo it
        self.view = memoryview(b"")
        if descriptor is not None and (size := os.fstat(descriptor).st_size):
            self._set_map(size)

    @property
    def is_shared(self) -> bool:
        return self._descriptor is not None

    def grow(self, size_bytes: int) -> None:
        """Hold at least this much, in another view. The content of a private block is lost."""
        if size_bytes <= self.size_bytes:
            return
        size = -(-size_bytes // _STEP_BYTES) * _STEP_BYTES if size_bytes > _STEP_BYTES else _aligned(size_bytes)
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, size)
        self._set_map(size)

    def touch(self, size_bytes: int) -> None:
        """Have the pages of the first `size_bytes` in memory. Their content does not change: call it at any time."""
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
        """Free the pages beyond; they read as zeros."""
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
    """An anonymous file that can grow and never shrink: its writer cannot crash its readers.

    It is not in /dev/shm, whose size, 64 MB in many containers, does not matter."""
    descriptor = os.memfd_create("everstep", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(descriptor, _F_ADD_SEALS, _F_SEAL_SHRINK)
    return descriptor


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view)) if len(view) else 0


def _aligned(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES


SPARE_SHARE = 0.1  # of the free memory is left to training …
SPARE_BYTES = 256 << 20  # … or this, if it is less
_NO_LIMIT = 1 << 60  # the kernel's number for it is larger still


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """How much may still be taken, and what sets the bound."""

    free_bytes: int
    all_bytes: int = 0  # used and free
    bound: str = "the machine's memory"
    remedy: str = "use a machine with more memory, or split the state over more workers"


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """2 buffers: the last state stays whole while the next is copied. 1: it does not. 0: not even one fits."""

    num_buffers: int
    reason: str


def decide_room(buffer_bytes: int, memory: Memory, *, held_bytes: int = 0) -> Room:
    """How many buffers of this size fit; `held_bytes` are taken by buffers already."""
    usable = memory.free_bytes + held_bytes - min(SPARE_BYTES, int(memory.free_bytes * SPARE_SHARE))
    wanted = f"two copies of {_mb(buffer_bytes)}"
    if usable >= 2 * buffer_bytes:
        return Room(num_buffers=2, reason=f"{wanted} fit into {_mb(usable)}")
    have = f"{_mb(memory.free_bytes + held_bytes)} are free ({memory.bound})"
    if usable >= buffer_bytes:
        lost = "only one is kept: a worker that dies while it is filled leaves the last checkpoint on storage alone"
        return Room(num_buffers=1, reason=f"{wanted} do not fit, {have}; {lost}. To have both: {memory.remedy}")
    lost = "training waits until each checkpoint is written"
    return Room(num_buffers=0, reason=f"not even one copy of {_mb(buffer_bytes)} fits, {have}; {lost}. {memory.remedy}")


def look_for_memory(root: Path = Path("/")) -> Memory:
    """The least that the machine and all cgroups around this process leave."""
    groups = root / "sys/fs/cgroup"
    unified = _limits(groups, _group(root, ""), limit="memory.max", usage="memory.current")
    names = {"limit": "memory.limit_in_bytes", "usage": "memory.usage_in_bytes"}
    classic = _limits(groups / "memory", _group(root, "memory"), **names)
    machine = Memory(free_bytes=_machine_bytes(root, "MemAvailable"), all_bytes=_machine_bytes(root, "MemTotal"))
    found = [machine, *unified, *classic]
    least = min(found, key=lambda memory: memory.free_bytes)
    return replace(least, all_bytes=min(memory.all_bytes for memory in found))


def _machine_bytes(root: Path, name: str) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return _NO_LIMIT


def _group(root: Path, controller: str) -> str:
    """This process's group in the hierarchy that has the controller; "" is the unified one."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return "/"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return "/"


def _limits(top: Path, group: str, *, limit: str, usage: str) -> list[Memory]:
    found = []
    folder = top / group.strip("/")
    for each in (folder, *folder.parents):
        if not each.is_relative_to(top):
            break
        try:
            allowed = (each / limit).read_text().strip()
            used = int((each / usage).read_text()) - _cache_bytes(each / "memory.stat")
        except (OSError, ValueError):  # a group outside this container, or the root, which has no limit
            continue
        if allowed != "max" and int(allowed) < _NO_LIMIT:
            found.append(
                Memory(
                    free_bytes=max(0, int(allowed) - used),
                    all_bytes=int(allowed),
                    bound=f"the memory limit of {_mb(int(allowed))} of this container or job",
                    remedy="raise its memory limit (docker --memory, resources.limits.memory, Slurm --mem)",
                )
            )
    return found


def _cache_bytes(stat: Path) -> int:
    """File cache, which the kernel gives up when memory is short; it does not include shared memory."""
    wanted = {"inactive_file", "active_file"}
    fields = (line.split() for line in stat.read_text().splitlines())
    return sum(int(value) for name, value in fields if name in wanted)


def _mb(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
