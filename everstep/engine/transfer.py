"""Send the leader's state to a peer: laggards and newcomers receive it aside, check its sum, then take it in.

The skeleton goes first, with the shape of every tensor and the checksum; then large tensors, each from where it lies,
and all small ones packed together. Nothing of the receiver changes until everything has arrived and the sums agree."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from everstep.engine.group import TAG_TRANSFER, Group, wait_all
from everstep.engine.state import as_bytes, checksum, decode, encode
from everstep.errors import StateMismatch
from everstep.events import emit

_SMALL_BYTES = 256 << 10
_CHUNK_BYTES = 64 << 20


def send_state(state: Any, group: Group, receivers: Sequence[int], worker: str) -> None:
    """Send to all receivers at once; returns when all messages are out."""
    tensors: list[Tensor] = []
    skeleton = encode(state, tensors)
    tensors = [tensor.cpu().contiguous() for tensor in tensors]
    cover = {
        "from": worker,
        "skeleton": skeleton,
        "tensors": [[str(t.dtype).removeprefix("torch."), list(t.shape)] for t in tensors],
        "checksum": checksum(skeleton, tensors),
    }
    letter = torch.frombuffer(bytearray(json.dumps(cover).encode()), dtype=torch.uint8)
    size = torch.tensor([letter.numel()], dtype=torch.int64)
    parcels = _parcels(tensors)
    emit("transfer.started", to=list(receivers), bytes=sum(p.numel() for p in parcels))
    works: list[dist.Work] = []
    for peer in receivers:
        works.append(group.send(size, peer, TAG_TRANSFER))
        works.append(group.send(letter, peer, TAG_TRANSFER + 1))
        for number, parcel in enumerate(parcels):
            works.append(group.send(parcel, peer, TAG_TRANSFER + 2 + number % 2))
    wait_all(works, group.world.generation)
    emit("transfer.sent", to=list(receivers))


def receive_state(group: Group, sender: int, worker: str) -> Any:
    size = torch.zeros(1, dtype=torch.int64)
    wait_all([group.recv(size, sender, TAG_TRANSFER)], group.world.generation)
    letter = torch.empty(int(size), dtype=torch.uint8)
    wait_all([group.recv(letter, sender, TAG_TRANSFER + 1)], group.world.generation)
    cover = json.loads(bytes(letter.numpy()))
    emit("transfer.receiving", sender=cover["from"])
    tensors = [torch.empty(shape, dtype=getattr(torch, dtype)) for dtype, shape in cover["tensors"]]
    small = torch.empty(sum(_bytes(t) for t in tensors if _bytes(t) < _SMALL_BYTES), dtype=torch.uint8)
    parcels = _parcels(tensors, small)
    works = [group.recv(parcel, sender, TAG_TRANSFER + 2 + number % 2) for number, parcel in enumerate(parcels)]
    wait_all(works, group.world.generation)
    _unpack(small, tensors)
    if (mine := checksum(cover["skeleton"], tensors)) != cover["checksum"]:
        raise StateMismatch(
            f"{worker} received a state with checksum {mine[:16]}, but {cover['from']} sent {cover['checksum'][:16]}",
            hint="nothing was loaded; check the memory and network of both machines",
        )
    emit("transfer.received", sender=cover["from"])
    return decode(cover["skeleton"], tensors)


def _parcels(tensors: Sequence[Tensor], small: Tensor | None = None) -> list[Tensor]:
    """The byte runs that travel, in order: the small tensors as one, then each large one in chunks."""
    if small is None:
        pieces = [as_bytes(t) for t in tensors if _bytes(t) < _SMALL_BYTES]
        small = torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.uint8)
    large = [as_bytes(t) for t in tensors if _bytes(t) >= _SMALL_BYTES]
    runs = [small, *large]
    return [chunk for run in runs if run.numel() for chunk in run.split(_CHUNK_BYTES)]


def _unpack(small: Tensor, tensors: Sequence[Tensor]) -> None:
    offset = 0
    for tensor in tensors:
        if (size := _bytes(tensor)) < _SMALL_BYTES:
            as_bytes(tensor).copy_(small[offset : offset + size])
            offset += size


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
