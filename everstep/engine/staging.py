"""Between the model's device and the wire: gloo speaks host memory.

On the CPU there is nothing to do: sums are sent from where they lie, results arrive where they are wanted. For CUDA,
each bucket is copied to pinned memory on a side stream as soon as it is ready, and back when its sum is there; the
host waits for the last copy before the update is queued."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from everstep.engine.buckets import Flats, Layout
from everstep.engine.tree import Node


class Staging(Protocol):
    def mark(self, bucket: int) -> None:
        """The sums of this bucket are queued on the current stream."""

    def outgoing(self, node: Node, sums: Flats, bucket: int) -> Tensor: ...
    def incoming(self, result: Flats, bucket: int) -> Tensor: ...
    def land(self, bucket: int) -> None:
        """The bucket's result has arrived."""

    def settle(self) -> None:
        """Wait until all results are where the model is."""


class HostStaging:
    def mark(self, bucket: int) -> None: ...

    def outgoing(self, node: Node, sums: Flats, bucket: int) -> Tensor:
        return sums.buffers[bucket]

    def incoming(self, result: Flats, bucket: int) -> Tensor:
        return result.buffers[bucket]

    def land(self, bucket: int) -> None: ...

    def settle(self) -> None: ...


class CudaStaging:
    """Pinned copies, made once and kept: one of the result, one for each partial sum in use."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self._layout = layout
        self._stream = torch.cuda.Stream(device)
        self._marks = [torch.cuda.Event() for _ in layout.buckets]
        self._out: dict[int, list[Tensor]] = {}  # by identity of the sums they mirror
        self._in = self._pinned()
        self._result: Flats | None = None

    def _pinned(self) -> list[Tensor]:
        return [torch.empty(b.numel, dtype=b.dtype, pin_memory=True) for b in self._layout.buckets]

    def mark(self, bucket: int) -> None:
        self._marks[bucket].record()

    def outgoing(self, node: Node, sums: Flats, bucket: int) -> Tensor:
        mirror = self._out.setdefault(id(sums), [])
        if not mirror:
            mirror.extend(self._pinned())
        self._marks[bucket].wait(self._stream)
        with torch.cuda.stream(self._stream):
            mirror[bucket].copy_(sums.buffers[bucket], non_blocking=True)
        self._stream.synchronize()
        return mirror[bucket]

    def incoming(self, result: Flats, bucket: int) -> Tensor:
        self._result = result
        return self._in[bucket]

    def land(self, bucket: int) -> None:
        assert self._result is not None
        with torch.cuda.stream(self._stream):
            self._result.buffers[bucket].copy_(self._in[bucket], non_blocking=True)

    def settle(self) -> None:
        self._stream.synchronize()
