"""A state on its way: a letter that describes it, and a copy of its tensors.

The copy is made between two steps, so the script may change what it likes while the state travels. Small tensors share
one run of bytes; each large one has its own. Runs are filled in order, and may be passed on while they are filled."""

from __future__ import annotations

import json
import mmap
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from everstep.engine.shared_memory import SharedBlock, cut, needed_bytes
from everstep.engine.state import checksum, decode, encode, tensor_sum
from everstep.errors import PeerLost, StateMismatch

SUM_BYTES = 64  # a SHA-256, in hexadecimal
_SMALL_BYTES = 256 << 10
_CHUNK_BYTES = 4 << 20


class Parcel:
    """Filled by one thread, read by others."""

    def __init__(self, letter: bytes, *, is_shared: bool = False, block: Tensor | None = None) -> None:
        """With room for what the letter describes. `is_shared`: neighbors can read it; `block`: it is in this memory,
        a neighbor's."""
        cover = json.loads(letter)
        self.letter = letter
        self.sender: str = cover["from"]
        self._skeleton = cover["skeleton"]
        shapes = [(torch.Size(shape), getattr(torch, dtype)) for dtype, shape in cover["tensors"]]
        large = [number for number, each in enumerate(shapes) if _size(*each) >= _SMALL_BYTES]
        small = [number for number, each in enumerate(shapes) if _size(*each) < _SMALL_BYTES]
        small_shapes = [(shapes[number][0].numel(), shapes[number][1]) for number in small]
        sizes = [needed_bytes(small_shapes), *(_size(*shapes[number]) for number in large)]
        self.num_bytes = sum(sizes)
        pieces = [(size, torch.uint8) for size in (len(letter), *sizes)]  # of a shared block
        self.block = SharedBlock(needed_bytes(pieces)) if is_shared else None
        if self.block is not None:
            self.block.bytes[: len(letter)].copy_(torch.frombuffer(bytearray(letter), dtype=torch.uint8))
        memory = self.block.bytes if self.block is not None else block
        self._is_own = memory is None
        self._runs = [room(size) for size in sizes] if memory is None else cut(memory, pieces)[1:]
        places = {number: run.view(shapes[number][1]) for number, run in zip(large, self._runs[1:], strict=True)}
        places |= dict(zip(small, cut(self._runs[0], small_shapes), strict=True))
        self._places = [places[number].view(shape) for number, (shape, _) in enumerate(shapes)]
        self._large = large
        self._num_filled = self.num_bytes if block is not None else 0
        self._is_given_up = False
        self._changed = threading.Condition()

    # --- filling it -------------------------------------------------------------------------------------

    @classmethod
    def in_block(cls, block: Tensor, letter_bytes: int) -> Parcel:
        """A neighbor's, where it is."""
        return cls(block[:letter_bytes].numpy().tobytes(), block=block)

    @classmethod
    def of(cls, state: Any, worker: str, *, is_shared: bool) -> Parcel:
        """A copy of this state."""
        tensors: list[Tensor] = []
        skeleton = encode(state, tensors)
        shapes = [[str(t.dtype).removeprefix("torch."), list(t.shape)] for t in tensors]
        letter = json.dumps({"from": worker, "skeleton": skeleton, "tensors": shapes}).encode()
        parcel = cls(letter, is_shared=is_shared)
        for place, tensor in zip(parcel._places, tensors, strict=True):
            place.copy_(tensor)
        parcel.note_filled(parcel.num_bytes)
        return parcel

    def note_filled(self, num_bytes: int) -> None:
        """So many bytes more."""
        with self._changed:
            self._num_filled += num_bytes
            self._changed.notify_all()

    def give_up(self) -> None:
        """No more will come."""
        with self._changed:
            self._is_given_up = True
            self._changed.notify_all()

    def pieces(self) -> Iterator[memoryview]:
        """All of its memory, in order."""
        for run in self._runs:
            if run.numel():
                memory = memoryview(run.numpy().data)
                for start in range(0, len(memory), _CHUNK_BYTES):
                    yield memory[start : start + _CHUNK_BYTES]

    # --- reading it -------------------------------------------------------------------------------------

    def filled_pieces(self) -> Iterator[memoryview]:
        """The same, each as soon as it is filled."""
        end = 0
        for piece in self.pieces():
            end += len(piece)
            self._await(end)
            yield piece

    def _await(self, num_bytes: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._num_filled >= num_bytes or self._is_given_up)
            if self._num_filled < num_bytes:
                raise PeerLost("the rest of the state did not come", code="state-incomplete")

    def sum(self) -> bytes:
        """The checksum of its contents; each large tensor is read as soon as it is filled."""
        sums, end = {}, self._runs[0].numel()
        for number in self._large:
            end += self._places[number].numel() * self._places[number].element_size()
            self._await(end)
            sums[number] = tensor_sum(self._places[number])
        self._await(self.num_bytes)
        parts = [sums[number] if number in sums else tensor_sum(place) for number, place in enumerate(self._places)]
        return checksum(self._skeleton, parts).encode()

    def check(self, mine: bytes, theirs: bytes, worker: str) -> None:
        if mine != theirs:
            raise StateMismatch(
                f"{worker} received a state with checksum {mine[:16].decode()}, but {self.sender} sent "
                f"{theirs[:16].decode(errors='replace')}",
                hint="nothing was loaded; check the memory and network of both machines",
                code="transfer-checksum-differs",
            )

    def private(self) -> Parcel:
        """A copy that no other process sees, or this one if none does."""
        if self._is_own:
            return self
        copy = Parcel(self.letter)
        for mine, theirs in zip(copy._runs, self._runs, strict=True):
            mine.copy_(theirs)
        copy.note_filled(copy.num_bytes)
        return copy

    def state(self) -> Any:
        """What was sent. Each tensor is in memory of its own: optimizers keep them, and torch.save writes, or refuses,
        all that shares a memory."""
        assert self._is_own
        large = set(self._large)
        tensors = [place if number in large else place.clone() for number, place in enumerate(self._places)]
        return decode(self._skeleton, tensors)


def room(size: int) -> Tensor:
    """Large ones in huge pages: to get small pages costs more than to fill them."""
    if size < _SMALL_BYTES:
        return torch.empty(size, dtype=torch.uint8)
    memory = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def _size(shape: torch.Size, dtype: torch.dtype) -> int:
    return shape.numel() * dtype.itemsize
