"""Memory that workers on the same machine read from each other: its contents need not travel.

A block is an anonymous file of the worker; a neighbor opens it through /proc, read-only. The
reduction decides who may read when: it sends a token, by which the order of things is the same as if the bytes had
been sent. Whether two workers are neighbors is tried out when their group is formed; where it does not work, bytes are
sent."""

from __future__ import annotations

import mmap
import os
import struct
import warnings
from collections.abc import Callable, Collection
from pathlib import Path

import torch
from torch import Tensor

SMALL_BYTES = 256 << 20

_NAME = "everstep"
ALIGN = 64  # bytes: one cache line
_TOKEN = struct.Struct("<qq")
TOKEN_BYTES = _TOKEN.size


class SharedBlock:
    """Bytes that neighbors may read. Small blocks have all their pages at once: one that is first used after a
    loss would make all workers wait."""

    def __init__(self, size_bytes: int) -> None:
        self.descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        size = max(size_bytes, 1)
        os.ftruncate(self.descriptor, size)
        flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if size <= SMALL_BYTES else 0)
        self.bytes = torch.frombuffer(mmap.mmap(self.descriptor, size, flags=flags), dtype=torch.uint8)
        self.token = _TOKEN.pack(self.descriptor, os.fstat(self.descriptor).st_ino)

    def __del__(self) -> None:
        os.close(self.descriptor)


def is_available() -> bool:
    return hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()


class Shelf:
    """Neighbors' blocks, opened once and kept as long as the neighbor is one: mapping them again costs a fault per
    page. A number can be another file's one day, an inode cannot."""

    def __init__(self, cut: Callable[[Tensor], list[Tensor]]) -> None:
        """`cut`: splits a block's bytes into its tensors."""
        self._cut = cut
        self._blocks: dict[tuple[int, bytes], list[Tensor]] = {}

    def look(self, pid: int, token: bytes) -> list[Tensor]:
        key = (pid, token)
        if key not in self._blocks:
            self._blocks[key] = self._cut(open_block(pid, token))
        return self._blocks[key]

    def keep(self, pids: Collection[int]) -> None:
        """All others are neighbors no more."""
        self._blocks = {key: tensors for key, tensors in self._blocks.items() if key[0] in pids}


def machine() -> str | None:
    """Where a process number means the same process: one kernel, one namespace. None: unknown."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return None


def open_block(pid: int, token: bytes) -> Tensor:
    """A neighbor's block, as bytes that must not be written to. Pages are mapped when they are read, several at a time:
    of a block, a worker reads little more than its own slices."""
    descriptor, inode = _TOKEN.unpack(token)
    mine = _open(pid, descriptor)
    try:
        if os.fstat(mine).st_ino != inode:
            raise FileNotFoundError(f"descriptor {descriptor} of process {pid} is another file now")
        memory = mmap.mmap(mine, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    finally:
        os.close(mine)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(memory, dtype=torch.uint8)


def can_open(pid: int, descriptor: int, content: bytes) -> bool:
    """Whether this process reads these bytes, and nothing else, in that block: the same machine, and allowed."""
    try:
        mine = _open(pid, descriptor)
    except OSError:
        return False
    try:
        return os.fstat(mine).st_size == len(content) and os.pread(mine, len(content), 0) == content
    except OSError:
        return False
    finally:
        os.close(mine)


def _open(pid: int, descriptor: int) -> int:
    """Open only files with our name: opening a device may do something, opening a pipe may never return."""
    path = f"/proc/{pid}/fd/{descriptor}"
    if not os.readlink(path).startswith(f"/memfd:{_NAME} "):
        raise FileNotFoundError(f"descriptor {descriptor} of process {pid} is not one of our blocks")
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def cut(block: Tensor, shapes: list[tuple[int, torch.dtype]]) -> list[Tensor]:
    """The block as tensors of these lengths and types, one after the other, each aligned."""
    tensors, offset = [], 0
    for numel, dtype in shapes:
        size = numel * dtype.itemsize
        tensors.append(block[offset : offset + size].view(dtype))
        offset += _aligned(size)
    return tensors


def needed_bytes(shapes: list[tuple[int, torch.dtype]]) -> int:
    return sum(_aligned(numel * dtype.itemsize) for numel, dtype in shapes)


def shared_tensors(shapes: list[tuple[int, torch.dtype]]) -> tuple[SharedBlock | None, list[Tensor]]:
    """A block with room for tensors of these lengths and types; nothing where there is no such memory."""
    if not is_available():
        return None, []
    block = SharedBlock(needed_bytes(shapes))
    return block, cut(block.bytes, shapes)


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
