"""Sum the buckets of a step, over gloo (host_sum.py) or over NCCL (device_sum.py).

Both add in the order of the same tree. An attempt belongs to one generation. It only reads the partial sums that it is
given, and writes to memory that no other code reads until the pulses of all workers prove that their parts have
succeeded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from everstep.engine.buckets import BucketLayout, Flats
from everstep.engine.group import Group
from everstep.engine.module_buffers import ModuleBuffers
from everstep.engine.pulse import Header
from everstep.engine.tree import Addition, TreeNode


@dataclass(frozen=True, kw_only=True, slots=True)
class SumTask:
    """The parts of a sum, and which ranks add them."""

    group: Group
    layout: BucketLayout
    num_leaves: int  # of the tree
    nodes: Sequence[Sequence[TreeNode]]  # by rank: the partial sums that it contributes
    sums: dict[TreeNode, Flats]  # the partial sums of this rank
    header: Header
    num_parameters: int
    buffers: ModuleBuffers  # the owner of the first leaf with weight sends what it has kept
    is_exact: bool


def add_in_order(
    parts: dict[TreeNode, Tensor],
    scratch: dict[TreeNode, Tensor],
    steps: Sequence[Addition],
    out: Tensor,
    take: Callable[[int, torch.dtype], Tensor],
) -> None:
    """Add all partial sums of a slice into `out`, in the order of the tree. Write only to `out` and to scratch memory:
    the parts in `scratch`, and more from `take`. Afterward, the memory in `scratch` is free again."""
    add_parts(parts, scratch, steps[:-1], take)
    if steps:
        torch.add(parts[steps[-1].left], parts[steps[-1].right], out=out)
    else:  # one rank contributes everything
        (only,) = parts.values()
        out.copy_(only)


def add_parts(
    parts: dict[TreeNode, Tensor],
    scratch: dict[TreeNode, Tensor],
    steps: Sequence[Addition],
    take: Callable[[int, torch.dtype], Tensor],
) -> None:
    """Make these additions. Each sum becomes a part, in scratch memory."""
    for left, right, name in steps:
        into = scratch.pop(left, None)
        if into is None:
            into = scratch.pop(right, None)
        if into is None:
            into = take(parts[left].numel(), parts[left].dtype)
        scratch[name] = parts[name] = torch.add(parts[left], parts[right], out=into)


class Conversation(Protocol):
    """How the communication thread waits for the script's thread and talks to peers. Each call raises PeerLost once the
    attempt is abandoned."""

    def await_bucket(self, bucket: int, *, block: bool = True) -> bool: ...

    def total(self) -> float:
        """The weight of all leaves; waits for all headers."""

    def send(self, tensor: Tensor, peer: int, tag: int) -> dist.Work: ...

    def recv(self, tensor: Tensor, peer: int, tag: int) -> dist.Work: ...

    def wait(self, works: Sequence[dist.Work]) -> None: ...

    def wait_in(self, call: Callable[[], None]) -> None:
        """Make a call that may never return."""


class BucketSums(Protocol):
    """One attempt. The script's thread calls `depart` and `complete`. The communication thread calls the rest, in this
    order: run, share, make_certain, collect, end."""

    means: Flats
    drain_s: float  # time for operations to end after an abort; 0: they cannot harm the next attempt

    def depart(self, bucket: int) -> None:
        """Called when this bucket's partial sums are complete, or queued on the current stream."""

    def complete(self) -> None:
        """Called when everything else is too, including the model's buffers."""

    def run(self, talk: Conversation) -> None:
        """Sum all buckets as they become ready, or queue that work."""

    def share(self, owner: int) -> Tensor:
        """Send the owner's model buffers to all. Returns where they will be once the attempt has succeeded."""

    def make_certain(self) -> None:
        """Wait until this worker's part has succeeded, or raise. Its pulse is sent after that."""

    def collect(self) -> None:
        """After the pulse is sent: wait until the means are where the model is."""

    def end(self) -> None:
        """Called when the attempt is over, successful or not, and the communication thread has left it."""
