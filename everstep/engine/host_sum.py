"""Sum buckets over gloo and through the memory of neighbors, while backward is still running.

Each bucket is cut into one slice per rank. Each rank sends each slice of its partial sums to the slice's owner; the
owner adds all partial sums in the order of the tree, divides once, and sends the result to all. The bytes on
the wire are those of a ring all-reduce when each rank contributes one partial sum; the additions are the same for every
number of ranks. A few buckets are in flight at a time. Every message has its own tag."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from everstep.engine.bucket_sums import Conversation, SumTask, add_in_order
from everstep.engine.buckets import BucketLayout, Flats, cut_points
from everstep.engine.group import TAG_BUCKETS, TAG_BUFFERS
from everstep.engine.host_staging import CudaStaging, HostStaging
from everstep.engine.mean import divide
from everstep.engine.shared_memory import SharedBlock, Shelf, cut, shared_tensors
from everstep.engine.tree import TreeNode, additions
from everstep.errors import PeerLost

IN_FLIGHT = 4
QUICK_S = 0.05  # too short for a peer to be given up and the next step to be summed
DRAIN_S = 0.1  # after an abort


@dataclass(frozen=True, kw_only=True, slots=True)
class PartialSum:
    """One partial sum of a slice, or where to find it."""

    slice: Tensor | None = None  # None: in a neighbor's memory
    peer: int
    tag: int
    is_scratch: bool = False


class Scratch:
    """Memory for what peers send and for partial sums. It is reused, because fresh pages cost more than the copy.

    Each piece has room for a whole bucket, but only pages that were used take up memory. So after a regroup, slices
    of other sizes find existing pages."""

    def __init__(self, layout: BucketLayout) -> None:
        self._capacity = max((bucket.numel * bucket.dtype.itemsize for bucket in layout.buckets), default=0)
        self._free: list[Tensor] = []

    def take(self, numel: int, dtype: torch.dtype) -> Tensor:
        piece = self._free.pop() if self._free else torch.empty(self._capacity, dtype=torch.uint8)
        return piece[: numel * dtype.itemsize].view(dtype)

    def give(self, tensor: Tensor) -> None:
        self._free.append(torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()))


class HostWay:
    """The memory of all attempts over gloo."""

    def __init__(self, layout: BucketLayout, parameters: Sequence[nn.Parameter]) -> None:
        self.means = Flats(layout, parameters, is_private=True)  # users may write to their gradients
        self.block, outbox = shared_tensors(layout.shapes)  # where neighbors read our slices of the result
        self.outbox = layout.in_buckets(outbox) if self.block is not None else []
        self.scratch = Scratch(layout)
        self.shelf = Shelf(lambda block: layout.in_buckets(cut(block, layout.shapes)))
        self.staging = _make_staging(layout)


class HostSum:
    drain_s = DRAIN_S

    def __init__(self, task: SumTask, way: HostWay) -> None:
        self.task = task
        self.means = way.means
        self._way = way
        self._staging, self._scratch = way.staging, way.scratch
        world = task.group.world
        self._world = world
        self._neighbors = task.group.neighbors
        self._cuts = [cut_points(bucket.numel, world.size) for bucket in task.layout.buckets]
        self._additions, _ = additions((n for nodes in task.nodes for n in nodes), task.num_leaves)
        self._stride = max(len(nodes) for nodes in task.nodes) + 1
        self._results: list[tuple[int, list[dist.Work]]] = []
        self._own: Tensor | None = None  # the model's buffers, on the host
        self._certain_at = 0.0

    def depart(self, bucket: int) -> None:
        self._staging.depart(bucket, self.task.sums)

    def complete(self) -> None:
        own = self.task.buffers.own
        self._own = own.cpu() if own is not None else None

    def run(self, talk: Conversation) -> None:
        self._talk = talk
        flying: deque[tuple[int, list[dist.Work], dict[TreeNode, PartialSum]]] = deque()
        following, last = 0, len(self.task.layout.buckets)
        while following < last or flying:
            is_next = following < last and len(flying) < IN_FLIGHT
            if is_next and talk.await_bucket(following, block=not flying):
                flying.append((following, *self._post_sums(following)))
                following += 1
                continue
            bucket, works, parts = flying.popleft()
            total = talk.total()
            talk.wait(works)
            self._add(bucket, parts, total)
            self._results.append((bucket, self._post_result(bucket)))

    def share(self, owner: int) -> Tensor:
        assert self._own is not None
        if owner == self._world.rank:
            self._show_buffers(self._own, self._neighbors)
            for peer in self._world.peers:
                if peer not in self._neighbors:
                    self._talk.send(self._own, peer, TAG_BUFFERS)
            return self._own
        room = torch.empty_like(self._own)
        if owner in self._neighbors:
            self._take_buffers(room, owner)
        else:
            self._talk.recv(room, owner, TAG_BUFFERS)
        return room

    def _show_buffers(self, buffers: Tensor, neighbors: Iterable[int]) -> None:
        raw = buffers.numpy().tobytes()
        for peer in neighbors:
            self._neighbors[peer].send_long(raw, TAG_BUFFERS)

    def _take_buffers(self, room: Tensor, neighbor: int) -> None:
        raw = self._neighbors[neighbor].recv_long(room.numel(), TAG_BUFFERS)
        room.copy_(torch.frombuffer(bytearray(raw), dtype=torch.uint8))

    def make_certain(self) -> None:
        self._certain_at = time.monotonic()

    def collect(self) -> None:
        for landed in self._results:
            self._take_result(*landed)
        self._staging.settle()
        self._check_results()

    def end(self) -> None: ...

    def _post_sums(self, bucket: int) -> tuple[list[dist.Work], dict[TreeNode, PartialSum]]:
        rank, cuts, tag = self._world.rank, self._cuts[bucket], self._tag(bucket)
        parts: dict[TreeNode, PartialSum] = {}
        works = []
        for peer in self._world.peers:
            for number, node in enumerate(self.task.nodes[peer]):
                if peer in self._neighbors:
                    parts[node] = PartialSum(peer=peer, tag=tag + number)
                    continue
                room = self._scratch.take(cuts[rank + 1] - cuts[rank], self.task.layout.buckets[bucket].dtype)
                parts[node] = PartialSum(slice=room, peer=peer, tag=tag + number, is_scratch=True)
                if room.numel():
                    works.append(self._talk.recv(room, peer, tag + number))
        for number, node in enumerate(self.task.nodes[rank]):
            sums = self.task.sums[node]
            mine = self._staging.outgoing(sums, bucket)
            parts[node] = PartialSum(slice=mine[cuts[rank] : cuts[rank + 1]], peer=rank, tag=tag + number)
            for peer in self._world.peers:
                if cuts[peer + 1] > cuts[peer]:
                    if peer in self._neighbors:
                        self._show(self._staging.block(sums), peer, tag + number)
                    else:
                        self._talk.send(mine[cuts[peer] : cuts[peer + 1]], peer, tag + number)
        return works, parts

    def _show(self, block: SharedBlock | None, peer: int, tag: int) -> None:
        """Show a neighbor where to read in this worker's memory."""
        assert block is not None
        self._neighbors[peer].send(block.token, tag)

    def _look(self, peer: int, tag: int, bucket: int, owner: int) -> Tensor:
        """The owner's slice of a bucket in a neighbor's memory, as soon as it is shown."""
        return self._shown(peer, tag)[bucket][self._cuts[bucket][owner] : self._cuts[bucket][owner + 1]]

    def _shown(self, peer: int, tag: int) -> list[Tensor]:
        """What a neighbor shows, by bucket."""
        neighbor = self._neighbors[peer]
        return self._way.shelf.look(neighbor.pid, neighbor.recv(tag))

    def _add(self, bucket: int, parts: dict[TreeNode, PartialSum], total: float) -> None:
        """Add this rank's slice in tree order, and divide once. Overwrites no parts outside of scratch memory."""
        rank, cuts = self._world.rank, self._cuts[bucket]
        out = self._outbox(bucket)[cuts[rank] : cuts[rank + 1]]
        scratch = {node: part.slice for node, part in parts.items() if part.is_scratch and part.slice is not None}
        if out.numel():
            values = {
                node: part.slice if part.slice is not None else self._look(part.peer, part.tag, bucket, rank)
                for node, part in parts.items()
            }
            add_in_order(values, scratch, self._additions, out, self._scratch.take)
            divide(out, total)
        for tensor in scratch.values():
            self._scratch.give(tensor)

    def _outbox(self, bucket: int) -> Tensor:
        """Where our slice of the result is written: neighbors read it there, and copy it, before we write again."""
        if self._neighbors:
            return self._way.outbox[bucket]
        return self._staging.incoming(self.means, bucket)

    def _post_result(self, bucket: int) -> list[dist.Work]:
        rank, cuts, tag = self._world.rank, self._cuts[bucket], self._result_tag(bucket)
        result = self._staging.incoming(self.means, bucket)
        mine = self._outbox(bucket)[cuts[rank] : cuts[rank + 1]]
        if self._neighbors:
            result[cuts[rank] : cuts[rank + 1]].copy_(mine)
        works = []
        for peer in self._world.peers:
            if peer in self._neighbors:
                if mine.numel():
                    self._show(self._way.block, peer, tag)
                continue
            if cuts[peer + 1] > cuts[peer]:
                works.append(self._talk.recv(result[cuts[peer] : cuts[peer + 1]], peer, tag))
            if mine.numel():
                self._talk.send(mine, peer, tag)
        return works

    def _take_result(self, bucket: int, works: list[dist.Work]) -> None:
        self._talk.wait(works)
        result, cuts, tag = self._staging.incoming(self.means, bucket), self._cuts[bucket], self._result_tag(bucket)
        for peer in self._neighbors:
            if cuts[peer + 1] > cuts[peer]:
                result[cuts[peer] : cuts[peer + 1]].copy_(self._look(peer, tag, bucket, peer))
        self._staging.land(self.means, bucket)

    def _check_results(self) -> None:
        """If this worker was frozen before it copied the results, neighbors may have continued without it and
        overwritten them. But they end the connection first. In a fixed world, neighbors end it when they are done."""
        if self._world.is_fixed:
            return
        if time.monotonic() > self._certain_at + QUICK_S and any(each.has_ended() for each in self._neighbors.values()):
            raise PeerLost(
                f"generation {self._world.generation} closed before results were read", code="sum-closed-before-read"
            )

    def _tag(self, bucket: int) -> int:
        return TAG_BUCKETS + bucket * self._stride

    def _result_tag(self, bucket: int) -> int:
        return self._tag(bucket) + self._stride - 1


def _make_staging(layout: BucketLayout) -> HostStaging:
    if layout.is_on_host:
        return HostStaging()
    return CudaStaging(layout, layout.device)
