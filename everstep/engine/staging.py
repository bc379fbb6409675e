"""Between the model's device and the wire: gloo speaks host memory.

On the CPU there is nothing to do: sums are sent from where they lie, results arrive where they are wanted. For CUDA,
each bucket is copied to pinned memory on a side stream as soon as it is ready, and back on another when its sum is
there; the host waits for the last copy before the update is queued."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from everstep.engine.buckets import Flats, Layout
from everstep.engine.tree import Node


class Staging(Protocol):
    def depart(self, bucket: int, sums: Mapping[Node, Flats]) -> None:
        """The sums of this bucket are complete, or queued on the current stream."""

    def outgoing(self, sums: Flats, bucket: int) -> Tensor:
        """Host memory with the sums; they have departed before."""

    def incoming(self, result: Flats, bucket: int) -> Tensor:
        """Host memory for the result."""

    def land(self, result: Flats, bucket: int) -> None:
        """The bucket's result has arrived."""

    def settle(self) -> None:
        """Wait until all results are where the model is."""


class HostStaging:
    def depart(self, bucket: int, sums: Mapping[Node, Flats]) -> None: ...

    def outgoing(self, sums: Flats, bucket: int) -> Tensor:
        return sums.buffers[bucket]

    def incoming(self, result: Flats, bucket: int) -> Tensor:
        return result.buffers[bucket]

    def land(self, result: Flats, bucket: int) -> None: ...

    def settle(self) -> None: ...


class CudaStaging:
    """Pinned copies, made once and kept: one of the result, one for each partial sum in use."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self._layout = layout
        self._away, self._home = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self._is_away = [torch.cuda.Event(blocking=True) for _ in layout.buckets]
        self._out: dict[int, list[Tensor]] = {}  # by identity of the sums they mirror
        self._in = self._pinned()

    def _pinned(self) -> list[Tensor]:
        return [torch.empty(b.numel, dtype=b.dtype, pin_memory=True) for b in self._layout.buckets]

    def depart(self, bucket: int, sums: Mapping[Node, Flats]) -> None:
        self._away.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._away):
            for flats in sums.values():
                if id(flats) not in self._out:
                    self._out[id(flats)] = self._pinned()
                self._out[id(flats)][bucket].copy_(flats.buffers[bucket], non_blocking=True)
            self._is_away[bucket].record()

    def outgoing(self, sums: Flats, bucket: int) -> Tensor:
        self._is_away[bucket].synchronize()
        return self._out[id(sums)][bucket]

    def incoming(self, result: Flats, bucket: int) -> Tensor:
        return self._in[bucket]

    def land(self, result: Flats, bucket: int) -> None:
        with torch.cuda.stream(self._home):
            result.buffers[bucket].copy_(self._in[bucket], non_blocking=True)

    def settle(self) -> None:
        self._home.synchronize()
