"""Messages between the devices of one generation: over NCCL for GPUs, or over gloo in its place for CPU tensors.

Each operation is queued behind the work on the current stream; its ticket's `wait` makes later work on that stream
follow it. All ranks queue the same operations in the same order. The stand-in completes each operation at once; with
it, the device code can be tested without a GPU."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from everstep import env
from everstep.engine.buckets import cut_points
from everstep.engine.group import TAG_BUCKETS, WAIT_S, Group, GroupForming, generation_store, gloo_words
from everstep.engine.world import World
from everstep.errors import PeerLost

log = logging.getLogger("everstep")

FORM_S = 30.0  # give up if NCCL has not connected all ranks by then
GROUPED_S = 0.2  # queueing grouped operations takes less time, unless NCCL is stuck

# Without these, torch ends the process when a peer is lost, or an abort takes a minute. Torch reads some of them when
# it creates a group, and others only when it needs them.
_TORCH_SETTINGS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_PROPAGATE_ERROR": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1",
    "TORCH_NCCL_NONBLOCKING_TIMEOUT": str(int(FORM_S)),
}
# NCCL sends pieces from node to node in chunks of 128 KiB. With these, exact sums over sockets took a fifth less time.
_CHUNK_BYTES = 512 << 10

Pieces = Sequence[tuple[Tensor, int]]  # each with the rank that it is sent to or received from


class QueuedWork(Protocol):
    def wait(self) -> Any: ...


class Communicator(Protocol):
    def exchange(self, sends: Pieces, recvs: Pieces) -> QueuedWork:
        """Send and receive all pieces at once. Pieces for the same peer are matched by their order."""

    def all_reduce(self, tensor: Tensor) -> QueuedWork: ...

    def end(self) -> None:
        """Abort operations under way and free all resources. Blocks for half a second or longer."""


class Nccl:
    """torch's NCCL group. It connects in the background; the first operation waits for that, for at most FORM_S."""

    def __init__(self, world: World, purpose: str, device: torch.device, attempt: GroupForming) -> None:
        from torch._C._distributed_c10d import ProcessGroupNCCL

        self._device = device
        self._grouping = threading.Lock()  # held while operations are grouped: an abort would tear the group apart
        env.update(_TORCH_SETTINGS)
        tune_nccl()
        options = ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=WAIT_S)
        options.config.blocking = 0  # otherwise nothing can stop an attempt to connect to a peer that has died
        with attempt.connecting(world) if world.size > 1 else contextlib.nullcontext():
            store = generation_store(world, purpose, FORM_S, attempt)
            self.group: Any = ProcessGroupNCCL(store, world.rank, world.size, options)
            self.group.eager_connect_single_device(device)

    @property
    def _open(self) -> Any:
        if (group := self.group) is None:  # ended by another thread
            raise PeerLost("the communicator has ended", code="communicator-ended")
        return group

    def exchange(self, sends: Pieces, recvs: Pieces) -> QueuedWork:
        with self._grouping:
            group = self._open
            group._start_coalescing()
            for tensor, peer in sends:
                if tensor.numel():
                    group.send([_plain(tensor)], peer, 0)
            for tensor, peer in recvs:
                if tensor.numel():
                    group.recv([_plain(tensor)], peer, 0)
            return group._end_coalescing() or _Done()  # there was nothing to do

    def all_reduce(self, tensor: Tensor) -> QueuedWork:
        ticket: QueuedWork = self._open.allreduce([_plain(tensor)])
        return ticket

    def end(self) -> None:
        group, self.group = self.group, None
        if self._grouping.acquire(timeout=GROUPED_S):
            self._grouping.release()  # later ones find no group
        try:
            group.abort()
        finally:
            torch.cuda.synchronize(self._device)  # aborted kernels may still run for a moment


def tune_nccl() -> None:
    """NCCL reads this once, when the process makes its first communicator. What the user has set stays."""
    env.set_default("NCCL_P2P_NET_CHUNKSIZE", str(_CHUNK_BYTES))


def start_nccl(device: torch.device) -> None:
    """Let NCCL do its one-time setup of the process, about half a second, before peers wait for this worker. Without
    NCCL, do nothing."""
    if device.type != "cuda" or not dist.is_nccl_available():
        return
    try:
        nccl = Nccl(World(generation=0, rank=0, size=1), "alone", device, GroupForming())
        nccl.all_reduce(torch.zeros(1, device=device)).wait()
        nccl.end()
    except RuntimeError as error:  # the trial with the other workers decides what follows from this
        log.warning("NCCL does not start: %s", gloo_words(error))


class StandIn:
    """The same operations over a separate gloo group."""

    def __init__(self, group: Group, attempt: GroupForming) -> None:
        self._group = Group.form_in_generation(
            group.world, group.address, f"{group.purpose}/device", attempt, has_neighbors=False
        )
        self._num_operations = 0

    def exchange(self, sends: Pieces, recvs: Pieces) -> QueuedWork:
        tag = TAG_BUCKETS + self._num_operations
        self._num_operations += 1
        works = [self._group.recv(tensor, peer, tag) for tensor, peer in recvs if tensor.numel()]
        works += [self._group.send(tensor, peer, tag) for tensor, peer in sends if tensor.numel()]
        self._group.wait(works)  # a message that is under way when the group ends is left behind
        return _Done()

    def all_reduce(self, tensor: Tensor) -> QueuedWork:
        world = self._group.world
        parts = {peer: tensor if peer == world.rank else torch.empty_like(tensor) for peer in range(world.size)}
        self.exchange([(tensor, peer) for peer in world.peers], [(parts[peer], peer) for peer in world.peers])
        total = parts[0].clone()
        for rank in range(1, world.size):
            total.add_(parts[rank])
        tensor.copy_(total)
        return _Done()

    def end(self) -> None:
        self._group.make_still()
        self._group.close()


def sum_over(communicator: Communicator, world: World, tensor: Tensor, *, is_exact: bool) -> Tensor:
    """Sum the tensors of all ranks, with the operations that gradients use."""
    if not is_exact:
        total = tensor.clone()
        communicator.all_reduce(total).wait()
        return total
    peers, slices = world.peers, list(tensor.tensor_split(cut_points(tensor.numel(), world.size)[1:-1]))
    theirs = {peer: torch.empty_like(slices[world.rank]) for peer in peers}
    communicator.exchange([(slices[p], p) for p in peers], [(theirs[p], p) for p in peers]).wait()
    totals = list(torch.empty_like(tensor).tensor_split(cut_points(tensor.numel(), world.size)[1:-1]))
    mine = totals[world.rank].copy_(slices[world.rank])
    for part in theirs.values():
        mine += part
    communicator.exchange([(mine, p) for p in peers], [(totals[p], p) for p in peers]).wait()
    return torch.cat(totals)


class _Done:
    def wait(self) -> None: ...


def _plain(tensor: Tensor) -> Tensor:
    """NCCL does not support complex numbers."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
