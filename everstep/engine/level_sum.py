"""Sum buckets in levels: inside a node through shared memory, between nodes once.

For each slice, a node adds what its members hold, as far as the tree allows, and sends the rest to the slice's owner:
one partial sum, if the node's micro-batches are a subtree. The result goes back to one member of each node, and the
others read it there. The additions are those of the tree, so the bits are the same."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from everstep.engine.bucket_sums import Conversation, SumTask, add_in_order, add_parts
from everstep.engine.group import TAG_BUFFERS
from everstep.engine.host_sum import IN_FLIGHT, HostSum, HostWay
from everstep.engine.levels import Levels
from everstep.engine.mean import divide
from everstep.engine.tree import TreeNode, additions


@dataclass(kw_only=True, slots=True)
class BucketInFlight:
    number: int
    parts: dict[TreeNode, Tensor] = field(default_factory=dict)  # what this node's members hold, the whole bucket
    arriving: dict[TreeNode, Tensor] = field(default_factory=dict)  # other nodes' sums of our slice
    works: list[dist.Work] = field(default_factory=list)
    scratch: list[Tensor] = field(default_factory=list)  # on its way to other nodes


class LevelSum(HostSum):
    def __init__(self, task: SumTask, way: HostWay, levels: Levels) -> None:
        super().__init__(task, way)
        self._levels = levels
        self._neighbors = {mate: task.group.neighbors[mate] for mate in levels.mates}
        by_node = [[part for rank in node for part in task.nodes[rank]] for node in levels.nodes]
        added = [additions(parts, task.num_leaves) for parts in by_node]
        self._own_additions = added[levels.node][0]
        self._left = [left for _, left in added]  # by node: the sums that it sends to each owner
        arriving = [part for node in levels.deputies for part in self._left[node]]
        self._additions, _ = additions([*by_node[levels.node], *arriving], task.num_leaves)
        self._stride = max(map(len, (*task.nodes, *self._left))) + 1

    def run(self, talk: Conversation) -> None:
        self._talk = talk
        posted: deque[BucketInFlight] = deque()
        merged: deque[BucketInFlight] = deque()
        following, last = 0, len(self.task.layout.buckets)
        while following < last or posted or merged:
            is_next = following < last and len(posted) + len(merged) < IN_FLIGHT
            if is_next and talk.await_bucket(following, block=not posted and not merged):
                posted.append(self._post(following))
                following += 1
            elif posted:
                merged.append(self._merge(posted.popleft()))
            else:
                self._finish(merged.popleft())

    def share(self, owner: int) -> Tensor:
        assert self._own is not None
        levels, rank = self._levels, self._world.rank
        if owner == rank:
            self._show_buffers(self._own, levels.mates)
            for deputy in levels.deputies.values():
                self._talk.send(self._own, deputy, TAG_BUFFERS)
            return self._own
        room = torch.empty_like(self._own)
        source = owner if owner in levels.mates else levels.deputy(owner, levels.node)
        if source == rank:
            self._talk.wait([self._talk.recv(room, owner, TAG_BUFFERS)])
            self._show_buffers(room, levels.mates)
        else:
            self._take_buffers(room, source)
        return room

    def collect(self) -> None:
        for bucket, works in self._results:
            self._talk.wait(works)
            result, outbox = self._staging.incoming(self.means, bucket), self._outbox(bucket)
            if self._neighbors:
                for cut in self._slices(bucket, self._world.rank):
                    result[cut].copy_(outbox[cut])
            for mate in self._neighbors:
                self._show(self._way.block, mate, self._result_tag(bucket))
        for bucket, _ in self._results:
            result = self._staging.incoming(self.means, bucket)
            for mate in self._neighbors:
                theirs = self._shown(mate, self._result_tag(bucket))[bucket]
                for cut in self._slices(bucket, mate):
                    result[cut].copy_(theirs[cut])
            self._staging.land(self.means, bucket)
        self._staging.settle()
        self._check_results()

    def _post(self, bucket: int) -> BucketInFlight:
        """Show what this worker holds to its node, and start to receive what the other nodes send."""
        flight, rank, tag = BucketInFlight(number=bucket), self._world.rank, self._tag(bucket)
        numel, dtype = self._numel(bucket, rank), self.task.layout.buckets[bucket].dtype
        for node, deputy in self._levels.deputies.items():
            for number, part in enumerate(self._left[node]):
                flight.arriving[part] = room = self._scratch.take(numel, dtype)
                if numel:
                    flight.works.append(self._talk.recv(room, deputy, tag + number))
        for number, part in enumerate(self.task.nodes[rank]):
            sums = self.task.sums[part]
            flight.parts[part] = self._staging.outgoing(sums, bucket)
            for mate in self._neighbors:
                self._show(self._staging.block(sums), mate, tag + number)
        return flight

    def _merge(self, flight: BucketInFlight) -> BucketInFlight:
        """Add what the node's members hold of the slices for which this worker is the deputy, and send it to the
        owners."""
        bucket, tag = flight.number, self._tag(flight.number)
        self._talk.total()  # raises if a worker has ended: it would never show what it holds
        for mate in self._neighbors:
            for number, part in enumerate(self.task.nodes[mate]):
                flight.parts[part] = self._shown(mate, tag + number)[bucket]
        for owner in self._levels.represented_by(self._world.rank):
            if self._numel(bucket, owner):
                cut = self._slice(bucket, owner)
                parts = {part: held[cut] for part, held in flight.parts.items()}
                scratch: dict[TreeNode, Tensor] = {}
                add_parts(parts, scratch, self._own_additions, self._scratch.take)
                flight.scratch += scratch.values()
                for number, part in enumerate(self._left[self._levels.node]):
                    flight.works.append(self._talk.send(parts[part], owner, tag + number))
        return flight

    def _finish(self, flight: BucketInFlight) -> None:
        """Add up our slice, and send the result to one member of each node."""
        bucket, rank = flight.number, self._world.rank
        total = self._talk.total()
        self._talk.wait(flight.works)
        cut, scratch = self._slice(bucket, rank), dict(flight.arriving)
        out = self._outbox(bucket)[cut]
        if out.numel():
            parts = {part: held[cut] for part, held in flight.parts.items()} | flight.arriving
            add_in_order(parts, scratch, self._additions, out, self._scratch.take)
            divide(out, total)
        for tensor in (*scratch.values(), *flight.scratch):
            self._scratch.give(tensor)
        self._results.append((bucket, self._post_result(bucket)))

    def _post_result(self, bucket: int) -> list[dist.Work]:
        tag, outbox = self._result_tag(bucket), self._outbox(bucket)
        mine = outbox[self._slice(bucket, self._world.rank)]
        for deputy in self._levels.deputies.values() if mine.numel() else ():
            self._talk.send(mine, deputy, tag)
        owners = [owner for owner in self._levels.represented_by(self._world.rank) if self._numel(bucket, owner)]
        return [self._talk.recv(outbox[self._slice(bucket, owner)], owner, tag) for owner in owners]

    def _slices(self, bucket: int, member: int) -> Iterator[slice]:
        """What a member of this node has of the result: its own slice, and those for which it is the deputy."""
        for owner in (member, *self._levels.represented_by(member)):
            yield self._slice(bucket, owner)

    def _slice(self, bucket: int, owner: int) -> slice:
        return slice(self._cuts[bucket][owner], self._cuts[bucket][owner + 1])

    def _numel(self, bucket: int, owner: int) -> int:
        return self._cuts[bucket][owner + 1] - self._cuts[bucket][owner]
