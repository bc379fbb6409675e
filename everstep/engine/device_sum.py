"""Sum buckets from device to device, on a separate stream while backward runs. The tree is that of host_sum.py, so the
bits are equal.

Exact: each run of buckets is cut into one slice per rank. Each rank sends each slice of its partial sums to the slice's
owner; the owner adds in the order of the tree, divides once, and sends the result to all. Fast: one all-reduce per run.

After a peer is lost, kernels of the attempt may run a while longer, on garbage. So each attempt writes to its own room,
which no other attempt uses until the stream is idle. An attempt counts only if, on every worker, the stream has
finished and the link had not been aborted by then. The pulses prove this."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from everstep.engine.bucket_sums import Conversation, SumTask, add_in_order
from everstep.engine.buckets import BucketLayout, BucketRun, Flats, cut_points
from everstep.engine.communicator import Communicator, QueuedWork
from everstep.engine.device_link import DYING_S, DeviceLink
from everstep.engine.lane import borrow_lane, give_back_lane
from everstep.engine.mean import divide
from everstep.engine.tree import TreeNode, additions
from everstep.waiting import wait_until


class DeviceRoom:
    """Memory that one attempt writes to; later attempts reuse it."""

    def __init__(self, layout: BucketLayout, parameters: Sequence[nn.Parameter]) -> None:
        self.means = Flats(layout, parameters, is_private=True)  # users may write to their gradients
        self.lane = borrow_lane(layout.device, len(layout.buckets) + 1)
        self.buffers: Tensor | None = None  # the model's, the same for all workers
        self.user: DeviceSum | None = None

    @property
    def is_free(self) -> bool:
        """Nothing writes to it anymore."""
        return self.user is None or (self.user.is_over and self.lane.is_idle)


class DeviceWay:
    """The rooms of all attempts: one, and one more for each attempt that is still dying. A room is as large as all
    gradients, so only one is kept once no attempt is dying."""

    def __init__(self, layout: BucketLayout, parameters: Sequence[nn.Parameter]) -> None:
        self._layout, self._parameters = layout, parameters
        self._rooms: list[DeviceRoom] = []

    def attempt(self, task: SumTask, link: DeviceLink) -> DeviceSum:
        free = self._free()
        room = free[0] if free else self._another()
        for other in free[1:]:
            give_back_lane(other.lane)
        self._rooms = [room, *(each for each in self._rooms if each not in free and each is not room)]
        room.user = DeviceSum(task, link, room)
        return room.user

    def _another(self) -> DeviceRoom:
        """A new room. If the device has no memory for it, wait for the first room that becomes free."""
        try:
            return DeviceRoom(self._layout, self._parameters)
        except torch.OutOfMemoryError:
            if not self._rooms or not wait_until(self._free, DYING_S, "an interrupted sum to end", pause_s=0.01):
                raise
            return self._free()[0]

    def _free(self) -> list[DeviceRoom]:
        return [room for room in self._rooms if room.is_free]


class DeviceSum:
    drain_s = 0.0  # the next attempt uses another room

    def __init__(self, task: SumTask, link: DeviceLink, room: DeviceRoom) -> None:
        self.task = task
        self.means = room.means
        self._has_succeeded = self._has_ended = False
        self._link, self._room, self._lane = link, room, room.lane
        world = task.group.world
        self._rank, self._peers = world.rank, world.peers
        self._cuts = [cut_points(run.numel, world.size) for run in task.layout.runs]
        self._additions, _ = additions((n for nodes in task.nodes for n in nodes), task.num_leaves)
        self._tickets: list[QueuedWork] = []  # for everything that was queued

    def depart(self, bucket: int) -> None:
        self._lane.mark(bucket)

    def complete(self) -> None:
        self._lane.mark(len(self.task.layout.buckets))

    def run(self, talk: Conversation) -> None:
        self._talk = talk
        self._communicator: Communicator = self._link.await_connected()
        with self._lane.entered():
            if self.task.is_exact:
                self._sum_in_order()
            else:
                self._sum_fast()

    def share(self, owner: int) -> Tensor:
        own = self.task.buffers.own
        assert own is not None
        if self._room.buffers is None:
            self._room.buffers = torch.empty_like(own, device=self._link.device)
        shared, is_mine = self._room.buffers, owner == self._rank
        with self._lane.entered():
            self._lane.follow(len(self.task.layout.buckets))
            shared.copy_(own) if is_mine else shared.zero_()
            if not self.task.is_exact:  # use the connections that the sums use
                self._queue(lambda: self._communicator.all_reduce(shared))
            elif is_mine:
                self._queue(lambda: self._communicator.exchange([(shared, peer) for peer in self._peers], []))
            else:
                self._queue(lambda: self._communicator.exchange([], [(shared, owner)]))
        return shared

    def make_certain(self) -> None:
        with self._lane.entered():
            for ticket in self._tickets:
                ticket.wait()
            self._talk.wait_in(self._lane.finish)
        self._link.check()
        self._has_succeeded = True

    def collect(self) -> None: ...

    def end(self) -> None:
        self._has_ended = True

    @property
    def is_over(self) -> bool:
        """The communication thread queues nothing more, and NCCL has finished."""
        return self._has_ended and (self._has_succeeded or self._link.is_ended)

    def _queue(self, operation: Callable[[], QueuedWork]) -> QueuedWork:
        try:
            self._talk.wait_in(lambda: self._tickets.append(operation()))
        except RuntimeError as error:
            self._link.note_error(error)
            raise
        return self._tickets[-1]

    def _await_run(self, run: BucketRun) -> None:
        for bucket in run.buckets:
            self._talk.await_bucket(bucket)
            self._lane.follow(bucket)

    # --- exact ------------------------------------------------------------------------------------------

    def _sum_in_order(self) -> None:
        """Go run by run, so that only the slices of the last run are left to exchange once it is ready."""
        for number, run in enumerate(self.task.layout.runs):
            self._await_run(run)
            self._add(number, *self._exchange(number))

    def _slice(self, number: int, memory: Tensor, rank: int) -> Tensor:
        return memory[self._cuts[number][rank] : self._cuts[number][rank + 1]]

    def _exchange(self, number: int) -> tuple[dict[TreeNode, Tensor], QueuedWork]:
        nodes, sums = self.task.nodes, self.task.sums
        mine = {node: sums[node].runs[number] for node in nodes[self._rank]}
        like = self._slice(number, self.means.runs[number], self._rank)
        theirs = {node: torch.empty_like(like) for peer in self._peers for node in nodes[peer]}
        sends = [(self._slice(number, memory, peer), peer) for memory in mine.values() for peer in self._peers]
        recvs = [(theirs[node], peer) for peer in self._peers for node in nodes[peer]]
        ticket = self._queue(lambda: self._communicator.exchange(sends, recvs))
        own = {node: self._slice(number, memory, self._rank) for node, memory in mine.items()}
        return {**theirs, **own}, ticket

    def _add(self, number: int, parts: dict[TreeNode, Tensor], ticket: QueuedWork) -> None:
        """Add this rank's slice in tree order, and divide once. Never overwrites this rank's partial sums."""
        ticket.wait()
        total = self._talk.total()
        out = self._slice(number, self.means.runs[number], self._rank)
        scratch = {node: part for node, part in parts.items() if node not in self.task.sums}
        add_in_order(parts, scratch, self._additions, out, lambda *_: torch.empty_like(out))
        divide(out, total)
        results = [(self._slice(number, self.means.runs[number], peer), peer) for peer in self._peers]
        self._queue(lambda: self._communicator.exchange([(out, peer) for peer in self._peers], results))

    # --- fast -------------------------------------------------------------------------------------------

    def _sum_fast(self) -> None:
        sums = next(iter(self.task.sums.values()), None)
        for number, run in enumerate(self.task.layout.runs):
            self._await_run(run)
            out = self.means.runs[number]
            out.copy_(sums.runs[number]) if sums is not None else out.zero_()
            self._queue(lambda: self._communicator.all_reduce(out))  # noqa: B023 (called at once)
        total = self._talk.total()
        for ticket, out in zip(self._tickets, self.means.runs, strict=True):
            ticket.wait()
            divide(out, total)
