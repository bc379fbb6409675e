"""A state in transit: a letter that describes it, a checksum, and the bytes of its tensors in pieces.

If the sender's script leaves its state alone until the next commit (steadiness.py), the bytes are sent straight from
its memory while it computes: no step is committed before all receivers have the state. The checksum, taken before the
script continues, reveals a change. If the script may change its state, the bytes are copied first."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch
from torch import Tensor

from everstep.engine.shared_memory import cut, needed_bytes
from everstep.engine.state import as_bytes, checksum, decode, encode, tensor_sum
from everstep.engine.state_room import SMALL_BYTES, room
from everstep.errors import PeerLost, PermanentError

SUM_BYTES = 64  # a SHA-256, in hexadecimal
PIECE_BYTES = 4 << 20

Shapes = Sequence[tuple[torch.Size, torch.dtype]]


class StatePiece(NamedTuple):
    memory: memoryview
    is_lasting: bool = True  # until the receivers have everything; if not, until the next piece is asked for


class Outgoing:
    """The leader's own state. Small tensors are copied into one run of bytes; large ones stay where they are, unless
    `is_copied`."""

    def __init__(self, state: Any, worker: str, *, is_copied: bool) -> None:
        tensors: list[Tensor] = []
        skeleton = encode(state, tensors)
        shapes = [[str(t.dtype).removeprefix("torch."), list(t.shape)] for t in tensors]
        cover = {"from": worker, "is_copied": is_copied, "skeleton": skeleton, "tensors": shapes}
        self.letter = json.dumps(cover).encode()
        small, large = _sorted([(t.shape, t.dtype) for t in tensors])
        self._small = room(needed_bytes([(tensors[number].numel(), tensors[number].dtype) for number in small]))
        places = cut(self._small, [(tensors[number].numel(), tensors[number].dtype) for number in small])
        for number, place in zip(small, places, strict=True):
            place.copy_(tensors[number].reshape(-1))
        self._large = [_copy(tensors[number]) if is_copied else tensors[number] for number in large]
        self.num_bytes = self._small.numel() + sum(_size(t.shape, t.dtype) for t in self._large)
        self._skeleton, self._tensors = skeleton, tensors
        self._checksum: Future[bytes] = Future()

    @classmethod
    def refusal(cls, reason: str, worker: str) -> Outgoing:
        """A message that is sent instead of a state."""
        refused = cls(None, worker, is_copied=True)
        refused.letter = json.dumps({**json.loads(refused.letter), "refusal": reason}).encode()
        return refused

    def sum_up(self) -> bytes:
        """Take the checksum, at the first call. The script must not continue before: the checksum is that of the state
        as it is now, whatever has been sent already."""
        if not self._checksum.done():
            try:
                sums = [tensor_sum(tensor) for tensor in self._tensors]
                self._checksum.set_result(checksum(self._skeleton, sums).encode())
            except BaseException as error:
                self._checksum.set_exception(error)
        return self._checksum.result()

    def await_checksum(self) -> bytes:
        """From another thread."""
        return self._checksum.result()

    def pieces(self) -> Iterator[StatePiece]:
        for run in _cut(self._small):
            yield StatePiece(run)
        for tensor in self._large:
            is_in_place = not tensor.is_cuda and tensor.is_contiguous()
            for run in _staged(tensor) if tensor.is_cuda else _cut(as_bytes(tensor)):
                yield StatePiece(run, is_lasting=is_in_place)


class Parcel:
    """A state that arrives. Filled by one thread, read by others."""

    def __init__(self, letter: bytes, take: Callable[[int], Tensor] = room) -> None:
        """Make room for what the letter describes. `take`: gives memory of this size."""
        cover = json.loads(letter)
        if "refusal" in cover:
            raise PermanentError(
                cover["refusal"],
                hint="the sender now copies its state first: start this worker again",
                code="state-changes-within-step",
            )
        self.letter = letter
        self.sender: str = cover["from"]
        self.is_copied: bool = cover["is_copied"]
        self._skeleton = cover["skeleton"]
        shapes = [(torch.Size(shape), getattr(torch, dtype)) for dtype, shape in cover["tensors"]]
        small, self._large = _sorted(shapes)
        small_shapes = [(shapes[number][0].numel(), shapes[number][1]) for number in small]
        sizes = [needed_bytes(small_shapes), *(_size(*shapes[number]) for number in self._large)]
        self.num_bytes = sum(sizes)
        self._runs = [take(size) for size in sizes]
        places = {number: run.view(shapes[number][1]) for number, run in zip(self._large, self._runs[1:], strict=True)}
        places |= dict(zip(small, cut(self._runs[0], small_shapes), strict=True))
        self._tensors = [places[number].view(shape) for number, (shape, _) in enumerate(shapes)]
        self._num_filled = 0
        self._is_given_up = False
        self._changed = threading.Condition()

    # --- filling it -------------------------------------------------------------------------------------

    def pieces(self) -> Iterator[memoryview]:
        """All of its memory, in order."""
        for run in self._runs:
            yield from _cut(run)

    def note_filled(self, num_bytes: int) -> None:
        """Called when another `num_bytes` have arrived."""
        with self._changed:
            self._num_filled += num_bytes
            self._changed.notify_all()

    def give_up(self) -> None:
        """Called when no more bytes will arrive."""
        with self._changed:
            self._is_given_up = True
            self._changed.notify_all()

    # --- reading it -------------------------------------------------------------------------------------

    def filled_pieces(self) -> Iterator[StatePiece]:
        """Each piece as soon as it is filled."""
        end = 0
        for memory in self.pieces():
            end += len(memory)
            self._await(end)
            yield StatePiece(memory)

    def _await(self, num_bytes: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._num_filled >= num_bytes or self._is_given_up)
            if self._num_filled < num_bytes:
                raise PeerLost("the rest of the state did not arrive", code="state-incomplete")

    def checksum(self) -> bytes:
        """Each large tensor is read as soon as it is filled."""
        sums, end = {}, self._runs[0].numel()
        for number in self._large:
            end += self._tensors[number].numel() * self._tensors[number].element_size()
            self._await(end)
            sums[number] = tensor_sum(self._tensors[number])
        self._await(self.num_bytes)
        parts = [sums[number] if number in sums else tensor_sum(each) for number, each in enumerate(self._tensors)]
        return checksum(self._skeleton, parts).encode()

    def state(self) -> Any:
        """What was sent. Each tensor has its own memory: optimizers keep the tensors, and torch.save writes all that
        shares memory with a tensor, or refuses to."""
        large = set(self._large)
        tensors = [each if number in large else each.clone() for number, each in enumerate(self._tensors)]
        return decode(self._skeleton, tensors)


def large_tensors(state: Any) -> list[Tensor]:
    """Those that are not copied before they are sent."""
    tensors: list[Tensor] = []
    encode(state, tensors)
    _, large = _sorted([(t.shape, t.dtype) for t in tensors])
    return [tensors[number] for number in large]


def _sorted(shapes: Shapes) -> tuple[list[int], list[int]]:
    """The numbers of the small tensors and of the large ones."""
    is_small = [_size(*each) < SMALL_BYTES for each in shapes]
    return [n for n, small in enumerate(is_small) if small], [n for n, small in enumerate(is_small) if not small]


def _cut(run: Tensor) -> Iterator[memoryview]:
    if run.numel():
        memory = memoryview(run.numpy().data)
        for start in range(0, len(memory), PIECE_BYTES):
            yield memory[start : start + PIECE_BYTES]


def _staged(tensor: Tensor) -> Iterator[memoryview]:
    """From a GPU, beside the work on its other streams."""
    stage, stream = torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True), torch.cuda.Stream(tensor.device)
    with torch.cuda.stream(stream):
        flat = as_bytes(tensor)  # a copy, if it is not contiguous
    for start in range(0, flat.numel(), PIECE_BYTES):
        part = flat[start : start + PIECE_BYTES]
        with torch.cuda.stream(stream):
            stage[: part.numel()].copy_(part, non_blocking=True)
        stream.synchronize()
        yield memoryview(stage.numpy().data)[: part.numel()]


def _copy(tensor: Tensor) -> Tensor:
    return room(_size(tensor.shape, tensor.dtype)).view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _size(shape: torch.Size, dtype: torch.dtype) -> int:
    return shape.numel() * dtype.itemsize
