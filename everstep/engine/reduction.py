"""Sum one step's gradients over one generation, bucket by bucket, while backward is still running.

Each bucket is cut into one slice per rank. Each rank sends each slice of its partial sums to the slice's owner; the
owner adds all partial sums in the order of the tree, divides once, and sends the result to all. The bytes on
the wire are those of a ring all-reduce when each rank brings one partial sum; the additions are the same for every
number of ranks. A few buckets are in flight at a time. The header goes ahead of the first bucket (owners need the total
weight before they divide); the pulse goes with the last.

One thread runs one static schedule; every message has its own tag. Sums are only read, results go to buffers that
no other code sees until `finish` returns: after a loss nothing was applied."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from everstep.engine.buckets import BucketLayout, Flats
from everstep.engine.group import TAG_BUCKETS, TAG_BUFFERS, TAG_HEADER, TAG_PULSE, Group, Swap, gloo_words
from everstep.engine.host_staging import HostStaging
from everstep.engine.mean import divide
from everstep.engine.module_buffers import ModuleBuffers
from everstep.engine.pulse import ENDS, Header, Pulse, first_with_weight, header_bytes, pulse_bytes, total_weight
from everstep.engine.shared_memory import SharedBlock, Shelf
from everstep.engine.tree import TreeNode, additions
from everstep.errors import PeerLost

IN_FLIGHT = 4
QUICK_S = 0.05  # too short for a peer to be given up and the next step to be summed
DRAIN_S = 0.1  # what of a broken group has not ended by then never will


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """The parts of a sum, and who adds them."""

    group: Group
    layout: BucketLayout
    num_leaves: int  # of the tree
    nodes: Sequence[Sequence[TreeNode]]  # by rank: the partial sums it brings
    sums: dict[TreeNode, Flats]  # this rank's
    header: Header
    num_parameters: int
    buffers: ModuleBuffers  # the first leaf with weight decides: its owner sends what it has kept
    outbox: tuple[SharedBlock | None, list[Tensor]]  # where neighbors read our slices of the result
    shelf: Shelf  # where we read theirs


@dataclass(frozen=True, kw_only=True, slots=True)
class PartialSum:
    """One partial sum of a slice, or where to find it."""

    slice: Tensor | None = None  # None: in a neighbor's memory
    peer: int
    tag: int
    is_scratch: bool = False


class Scratch:
    """Memory for what peers send and for partial sums, used again and again: fresh pages cost more than the copy.

    Each piece has room for a whole bucket, of which only what was ever used is really there: so slices of other sizes,
    after a regroup, find their pages."""

    def __init__(self, layout: BucketLayout) -> None:
        self._capacity = max((bucket.numel * bucket.dtype.itemsize for bucket in layout.buckets), default=0)
        self._free: list[Tensor] = []

    def take(self, numel: int, dtype: torch.dtype) -> Tensor:
        piece = self._free.pop() if self._free else torch.empty(self._capacity, dtype=torch.uint8)
        return piece[: numel * dtype.itemsize].view(dtype)

    def give(self, tensor: Tensor) -> None:
        self._free.append(torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()))


class Reduction:
    """One attempt. `ready` and `flush` are called as backward goes; `finish` waits; `abort` may come any time."""

    def __init__(self, task: Task, result: Flats, staging: HostStaging, scratch: Scratch) -> None:
        self.task = task
        self.result = result
        self._staging = staging
        self._scratch = scratch
        self._changed = threading.Condition()
        self._ready = [False] * len(task.layout.buckets)
        self._pulse: Pulse | None = None
        self._pulses: list[Pulse] = []
        self._failure: BaseException | None = None
        self._is_aborted = False
        self._is_waiting = False  # inside gloo, which may never let it come back (group.py)
        self._is_left_behind = False
        self.is_done = False
        self.total = 0.0  # weight of all leaves
        self.buffers: Tensor | None = None  # as bytes: what all take; None: no leaf has weight, or there are none
        world = task.group.world
        self._world = world
        self._neighbors = task.group.neighbors
        self._cuts = [
            [bucket.numel * rank // world.size for rank in range(world.size + 1)] for bucket in task.layout.buckets
        ]
        self._additions, _ = additions((n for nodes in task.nodes for n in nodes), task.num_leaves)
        self._stride = max(len(nodes) for nodes in task.nodes) + 1
        self._open: dict[int, dist.Work] = {}  # posted and not waited for; waiting twice would never end
        self._keep: list[Swap] = []  # small messages, alive until their work has ended

    # --- called by the engine -------------------------------------------------------------------------

    def ready(self, bucket: int) -> None:
        self._staging.depart(bucket, self.task.sums)
        with self._changed:
            self._ready[bucket] = True
            self._changed.notify_all()

    def flush(self, pulse: Pulse) -> None:
        """All of this worker's sums are complete."""
        for bucket, is_ready in enumerate(self._ready):
            if not is_ready:
                self.ready(bucket)
        with self._changed:
            self._pulse = pulse
            self._changed.notify_all()

    def abort(self) -> None:
        with self._changed:
            self._is_aborted = True
            self._changed.notify_all()

    def finish(self) -> list[Pulse]:
        """Wait for the sum; PeerLost if the generation broke. Afterwards all memory given to it is free."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_done or self._is_aborted)
        if not self.is_done:
            self.task.group.make_still()
            with self._changed:
                self._changed.wait_for(lambda: self.is_done, DRAIN_S)
                self._changed.wait_for(lambda: self.is_done or self._is_waiting)
                self._is_left_behind = not self.is_done
        if self._failure is not None:
            raise self._failure
        if not self.is_done:
            raise self._closed()
        return self._pulses

    # --- runs in the communication thread ---------------------------------------------------------------

    def run(self) -> None:
        try:
            self._run()
        except (RuntimeError, OSError) as error:  # gloo's
            broken = f"generation {self._world.generation} is broken: {gloo_words(error)}"
            self._failure = PeerLost(broken, code="sum-broken")
            self._failure.__cause__ = error
        except BaseException as error:  # ours: to do it again would not help
            self._failure = error
        finally:
            if self._failure is not None:
                self.task.group.make_still()
            with self._changed:
                self.is_done = True
                self._changed.notify_all()

    def _run(self) -> None:
        sizes = [header_bytes(len(self.task.header.weights))] * self._world.size
        take_headers = self._swap(self.task.header.pack(), sizes, TAG_HEADER)
        headers: list[Header] = []
        flying: deque[tuple[int, list[dist.Work], dict[TreeNode, PartialSum]]] = deque()
        results: list[tuple[int, list[dist.Work]]] = []
        following, last = 0, len(self._ready)
        while following < last or flying:
            is_next = following < last and len(flying) < IN_FLIGHT
            if is_next and self._await(partial(self._ready.__getitem__, following), block=not flying):
                flying.append((following, *self._post_sums(following)))
                following += 1
                continue
            bucket, works, parts = flying.popleft()
            headers = headers or self._check_headers(take_headers())
            self._wait(works)
            self._add(bucket, parts, self.total)
            results.append((bucket, self._post_result(bucket)))
        self._await(lambda: self._pulse is not None)
        headers = headers or self._check_headers(take_headers())
        told_at = time.monotonic()
        take_pulses = self._post_pulse(headers)
        for landed in results:
            self._take_result(*landed)
        pulses = take_pulses()
        self._wait(list(self._open.values()))
        self._staging.settle()
        self._check_results(told_at)
        self._pulses = pulses

    def _await(self, is_there: Callable[[], bool], *, block: bool = True) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: is_there() or not block or self._is_aborted)
            if self._is_aborted:
                raise self._closed()
            return is_there()

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
                    works.append(self._recv(room, peer, tag + number))
        for number, node in enumerate(self.task.nodes[rank]):
            sums = self.task.sums[node]
            mine = self._staging.outgoing(sums, bucket)
            parts[node] = PartialSum(slice=mine[cuts[rank] : cuts[rank + 1]], peer=rank, tag=tag + number)
            for peer in self._world.peers:
                if cuts[peer + 1] > cuts[peer]:
                    if peer in self._neighbors:
                        self._show(self._staging.block(sums), peer, tag + number)
                    else:
                        self._send(mine[cuts[peer] : cuts[peer + 1]], peer, tag + number)
        return works, parts

    def _show(self, block: SharedBlock | None, peer: int, tag: int) -> None:
        """Show a neighbor where to read in this worker's memory."""
        assert block is not None
        self._neighbors[peer].send(block.token, tag)

    def _look(self, peer: int, tag: int, bucket: int, owner: int) -> Tensor:
        """The owner's slice of a bucket in a neighbor's memory, as soon as it is shown."""
        neighbor = self._neighbors[peer]
        tensors = self.task.shelf.look(neighbor.pid, neighbor.recv(tag), self.task.layout.shapes)
        return tensors[bucket][self._cuts[bucket][owner] : self._cuts[bucket][owner + 1]]

    def _add(self, bucket: int, parts: dict[TreeNode, PartialSum], total: float) -> None:
        """The slice's sum in tree order, divided once. Only scratch is written to: all else is somebody's."""
        rank, cuts = self._world.rank, self._cuts[bucket]
        out = self._outbox(bucket)[cuts[rank] : cuts[rank + 1]]
        scratch = {node: part.slice for node, part in parts.items() if part.is_scratch and part.slice is not None}
        if out.numel():
            values = {
                node: part.slice if part.slice is not None else self._look(part.peer, part.tag, bucket, rank)
                for node, part in parts.items()
            }
            for left, right, name in self._additions[:-1]:
                into = scratch.pop(left, None)
                if into is None:
                    into = scratch.pop(right, None)
                if into is None:
                    into = self._scratch.take(out.numel(), out.dtype)
                scratch[name] = values[name] = torch.add(values[left], values[right], out=into)
            if self._additions:
                torch.add(values[self._additions[-1].left], values[self._additions[-1].right], out=out)
            else:  # one rank brings it all
                (only,) = values.values()
                out.copy_(only)
            divide(out, total)
        for tensor in scratch.values():
            self._scratch.give(tensor)

    def _outbox(self, bucket: int) -> Tensor:
        """Where our slice of the result is written: neighbors read it there, and copy it, before we write again."""
        if self._neighbors:
            return self.task.outbox[1][bucket]
        return self._staging.incoming(self.result, bucket)

    def _post_result(self, bucket: int) -> list[dist.Work]:
        rank, cuts, tag = self._world.rank, self._cuts[bucket], self._result_tag(bucket)
        result = self._staging.incoming(self.result, bucket)
        mine = self._outbox(bucket)[cuts[rank] : cuts[rank + 1]]
        if self._neighbors:
            result[cuts[rank] : cuts[rank + 1]].copy_(mine)
        works = []
        for peer in self._world.peers:
            if peer in self._neighbors:
                if mine.numel():
                    self._show(self.task.outbox[0], peer, tag)
                continue
            if cuts[peer + 1] > cuts[peer]:
                works.append(self._recv(result[cuts[peer] : cuts[peer + 1]], peer, tag))
            if mine.numel():
                self._send(mine, peer, tag)
        return works

    def _take_result(self, bucket: int, works: list[dist.Work]) -> None:
        self._wait(works)
        result, cuts, tag = self._staging.incoming(self.result, bucket), self._cuts[bucket], self._result_tag(bucket)
        for peer in self._neighbors:
            if cuts[peer + 1] > cuts[peer]:
                result[cuts[peer] : cuts[peer + 1]].copy_(self._look(peer, tag, bucket, peer))
        self._staging.land(self.result, bucket)

    def _check_results(self, told_at: float) -> None:
        """If this worker was frozen before it had copied the results, neighbors may have continued without it since,
        and written there again. But first they have ended the connection. In a fixed world they are done."""
        if self._world.is_fixed:
            return
        if time.monotonic() > told_at + QUICK_S and any(each.has_ended() for each in self._neighbors.values()):
            raise PeerLost(
                f"generation {self._world.generation} closed before results were read", code="sum-closed-before-read"
            )

    def _check_headers(self, raws: list[bytes]) -> list[Header]:
        headers = [Header.unpack(raw) for raw in raws]
        ended = [rank for rank, header in enumerate(headers) if header.kind == ENDS]
        if ended:
            raise PeerLost(f"rank {', '.join(map(str, ended))} ended; the others continue", code="peer-ended")
        self.total = total_weight(headers)
        return headers

    def _post_pulse(self, headers: Sequence[Header]) -> Callable[[], list[Pulse]]:
        assert self._pulse is not None
        sizes = [pulse_bytes(self.task.num_parameters, header.note_bytes) for header in headers]
        raws = self._swap(self._pulse.pack(), sizes, TAG_PULSE)
        works: list[dist.Work] = []
        owner, own, room = first_with_weight(headers), self.task.buffers.own, self.task.buffers.room
        if owner is not None and own is not None and room is not None:
            self.buffers = own if owner == self._world.rank else room
            if owner == self._world.rank:
                for peer in self._world.peers:
                    self._send(own, peer, TAG_BUFFERS)
            else:
                works.append(self._recv(room, owner, TAG_BUFFERS))

        def take() -> list[Pulse]:
            pulses = [Pulse.unpack(raw) for raw in raws()]
            self._wait(works)
            return pulses

        return take

    def _swap(self, own: bytes, sizes: Sequence[int], tag: int) -> Callable[[], list[bytes]]:
        """Send a small message to all; calling the result waits for all of theirs, by rank."""
        swap = Swap(self.task.group, own, sizes, tag)
        self._open |= {id(work): work for work in swap.works}
        self._keep.append(swap)

        def collect() -> list[bytes]:
            self._wait(swap.works)
            return swap.arrived()

        return collect

    def _send(self, tensor: Tensor, peer: int, tag: int) -> None:
        work = self.task.group.send(tensor, peer, tag)
        self._open[id(work)] = work

    def _recv(self, tensor: Tensor, peer: int, tag: int) -> dist.Work:
        work = self.task.group.recv(tensor, peer, tag)
        self._open[id(work)] = work
        return work

    def _wait(self, works: Sequence[dist.Work]) -> None:
        for work in works:
            del self._open[id(work)]
        self._set_waiting(True)
        self.task.group.wait_here(works)
        self._set_waiting(False)

    def _set_waiting(self, is_waiting: bool) -> None:
        with self._changed:
            if self._is_left_behind:  # and comes back after all: the memory is in others' hands
                raise self._closed()
            self._is_waiting = is_waiting
            self._changed.notify_all()

    def _closed(self) -> PeerLost:
        return PeerLost(f"generation {self._world.generation} was closed", code="sum-closed")

    def _tag(self, bucket: int) -> int:
        return TAG_BUCKETS + bucket * self._stride

    def _result_tag(self, bucket: int) -> int:
        return self._tag(bucket) + self._stride - 1
