"""Send the leader's state to a peer: laggards and newcomers receive it aside, check its sum, then take it in.

The skeleton goes first, with the shape of every tensor; then all small tensors packed together, and each large one from
where it is; the checksum, taken while the bytes are on their way, goes last. Nothing of the receiver changes until
everything has arrived and the sums agree."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from everstep.engine.group import TAG_CHECKSUM, TAG_TRANSFER, Group
from everstep.engine.state import as_bytes, checksum, decode, encode, tensor_sum
from everstep.errors import StateMismatch
from everstep.events import emit

_SMALL_BYTES = 256 << 10
_CHUNK_BYTES = 32 << 20
_SUM_BYTES = 64  # a SHA-256, in hexadecimal


def send_state(state: Any, group: Group, receivers: Sequence[int], worker: str) -> None:
    """Send to all receivers at once; returns when all messages are out."""
    tensors: list[Tensor] = []
    skeleton = encode(state, tensors)
    tensors = [tensor.cpu().contiguous() for tensor in tensors]
    shapes = [[str(t.dtype).removeprefix("torch."), list(t.shape)] for t in tensors]
    letter = _message(json.dumps({"from": worker, "skeleton": skeleton, "tensors": shapes}).encode())
    size = torch.tensor([letter.numel()], dtype=torch.int64)
    small, large = _sorted(tensors)
    packed = torch.cat([as_bytes(t) for t in small]) if small else torch.empty(0, dtype=torch.uint8)
    emit("transfer.started", to=list(receivers), bytes=sum(_bytes(t) for t in tensors))
    works: list[dist.Work] = []
    for peer in receivers:
        works.append(group.send(size, peer, TAG_TRANSFER))
        works.append(group.send(letter, peer, TAG_TRANSFER + 1))
        for run in (packed, *large):
            works += [group.send(chunk, peer, TAG_TRANSFER + 2) for chunk in _chunks(run)]
    trailer = _message(checksum(skeleton, [tensor_sum(t) for t in tensors]).encode())
    works += [group.send(trailer, peer, TAG_CHECKSUM) for peer in receivers]
    group.wait(works)
    emit("transfer.sent", to=list(receivers))


def receive_state(group: Group, sender: int, worker: str) -> Any:
    size = torch.zeros(1, dtype=torch.int64)
    group.wait([group.recv(size, sender, TAG_TRANSFER)])
    letter = torch.empty(int(size), dtype=torch.uint8)
    group.wait([group.recv(letter, sender, TAG_TRANSFER + 1)])
    cover = json.loads(bytes(letter.numpy()))
    emit("transfer.receiving", sender=cover["from"])
    tensors, packed = _aside([(shape, getattr(torch, dtype)) for dtype, shape in cover["tensors"]])
    small, large = _sorted(tensors)
    arriving = [[group.recv(c, sender, TAG_TRANSFER + 2) for c in _chunks(run)] for run in (packed, *large)]
    trailer = torch.empty(_SUM_BYTES, dtype=torch.uint8)
    last = group.recv(trailer, sender, TAG_CHECKSUM)
    sums: dict[int, bytes] = {}
    for works, tensor in zip(arriving, (None, *large), strict=True):
        group.wait(works)
        if tensor is not None:
            sums[id(tensor)] = tensor_sum(tensor)  # while the next is on its way
    group.wait([last])
    _unpack(packed, small)
    mine = checksum(cover["skeleton"], [sums.get(id(t)) or tensor_sum(t) for t in tensors])
    theirs = bytes(trailer.numpy()).decode()
    if mine != theirs:
        raise StateMismatch(
            f"{worker} received a state with checksum {mine[:16]}, but {cover['from']} sent {theirs[:16]}",
            hint="nothing was loaded; check the memory and network of both machines",
            code="transfer-checksum-differs",
        )
    emit("transfer.received", sender=cover["from"])
    return decode(cover["skeleton"], tensors)


def _message(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _sorted(tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Small ones and large ones, each in order."""
    return [t for t in tensors if _bytes(t) < _SMALL_BYTES], [t for t in tensors if _bytes(t) >= _SMALL_BYTES]


def _chunks(tensor: Tensor) -> Iterator[Tensor]:
    raw = as_bytes(tensor)
    return iter(raw.split(_CHUNK_BYTES) if raw.numel() else ())


def _aside(shapes: Sequence[tuple[list[int], torch.dtype]]) -> tuple[list[Tensor], Tensor]:
    """Room for these tensors, and for the packed small ones.

    Each in memory of its own: optimizers keep them, and torch.save writes, or refuses, all that shares a memory."""
    tensors = [_room(torch.Size(shape), dtype) for shape, dtype in shapes]
    small, _ = _sorted(tensors)
    return tensors, _room(torch.Size([sum(_bytes(t) for t in small)]), torch.uint8)


def _room(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Large ones in huge pages: to get small pages costs more than to fill them."""
    size = shape.numel() * dtype.itemsize
    if size < _SMALL_BYTES:
        return torch.empty(shape, dtype=dtype)
    memory = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def _unpack(packed: Tensor, small: Sequence[Tensor]) -> None:
    offset = 0
    for tensor in small:
        as_bytes(tensor).copy_(packed[offset : offset + _bytes(tensor)])
        offset += _bytes(tensor)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
