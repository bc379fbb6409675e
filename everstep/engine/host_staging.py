"""Between the model's device and the wire: what is sent, or read by neighbors, is host memory.

On the CPU there is nothing to do: sums are sent from where they lie, results arrive where they are wanted. For CUDA,
each bucket is copied to pinned memory on a side stream as soon as it is ready, and back on another when its sum is
there; the host waits for the last copy before the update is queued."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from everstep.engine.buckets import BucketLayout, Flats
from everstep.engine.shared_memory import SharedBlock, shared_tensors
from everstep.engine.tree import TreeNode


class HostStaging:
    """For the CPU; `CudaStaging` says where something is to be done."""

    def depart(self, bucket: int, sums: Mapping[TreeNode, Flats]) -> None:
        """The sums of this bucket are complete, or queued on the current stream."""

    def outgoing(self, sums: Flats, bucket: int) -> Tensor:
        """Host memory with the sums; they have departed before."""
        return sums.buffers[bucket]

    def block(self, sums: Flats) -> SharedBlock | None:
        """Where neighbors find what `outgoing` gives; None: they cannot."""
        return sums.block

    def incoming(self, result: Flats, bucket: int) -> Tensor:
        """Host memory for the result."""
        return result.buffers[bucket]

    def land(self, result: Flats, bucket: int) -> None:
        """The bucket's result has arrived."""

    def settle(self) -> None:
        """Wait until all results are where the model is."""


class _Pinned:
    """Page-locked host memory for all buckets, which neighbors can read where that is possible."""

    def __init__(self, layout: BucketLayout) -> None:
        self.block, runs = shared_tensors(layout.shapes)
        if self.block is None:
            runs = [torch.empty(numel, dtype=dtype, pin_memory=True) for numel, dtype in layout.shapes]
        self.buffers = layout.in_buckets(runs)
        if self.block is None:
            return
        cudart = torch.cuda.cudart()
        error = cudart.cudaHostRegister(self.block.bytes.data_ptr(), self.block.bytes.numel(), 0)
        torch.cuda.check_error(int(error))


class CudaStaging(HostStaging):
    """Pinned copies, made once and kept: one of the result, one for each partial sum in use."""

    def __init__(self, layout: BucketLayout, device: torch.device) -> None:
        self._layout = layout
        self._away, self._home = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self._is_away = [torch.cuda.Event(blocking=True) for _ in layout.buckets]
        self._out: dict[int, _Pinned] = {}  # by identity of the sums they mirror
        self._in = _Pinned(layout)

    def _mirror(self, sums: Flats) -> _Pinned:
        if id(sums) not in self._out:
            self._out[id(sums)] = _Pinned(self._layout)
        return self._out[id(sums)]

    def depart(self, bucket: int, sums: Mapping[TreeNode, Flats]) -> None:
        self._away.wait_stream(torch.cuda.current_stream(self._away.device))
        with torch.cuda.stream(self._away):
            for flats in sums.values():
                self._mirror(flats).buffers[bucket].copy_(flats.buffers[bucket], non_blocking=True)
            self._is_away[bucket].record()

    def outgoing(self, sums: Flats, bucket: int) -> Tensor:
        self._is_away[bucket].synchronize()
        return self._mirror(sums).buffers[bucket]

    def block(self, sums: Flats) -> SharedBlock | None:
        return self._mirror(sums).block

    def incoming(self, result: Flats, bucket: int) -> Tensor:
        return self._in.buffers[bucket]

    def land(self, result: Flats, bucket: int) -> None:
        with torch.cuda.stream(self._home):
            result.buffers[bucket].copy_(self._in.buffers[bucket], non_blocking=True)

    def settle(self) -> None:
        self._home.synchronize()
