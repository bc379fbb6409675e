"""A message from each worker to all others: the headers and pulses of a step, hellos, and values that all agree on.

Neighbors get it over a Unix socket, the others over gloo. In levels, a message crosses to each other node once, and is
passed on there. Headers and pulses cross between a rank and its deputies, so that all connections share the work of
each step. Hellos and values cross between the first members of the nodes: newcomers do not take part in all rounds, but
these members do."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from everstep.engine.levels import Levels

if TYPE_CHECKING:
    from everstep.engine.group import Group

TAG_LENGTHS, TAG_TEXTS = 3, 4  # of what is gathered
_LENGTH = struct.Struct("<q")


class Swap:
    """One exchange, under way. No worker waits for gloo before it has taken in what its neighbors sent: they might be
    unable to send anything else before that."""

    def __init__(self, group: Group, own: bytes, sizes: Sequence[int], tag: int) -> None:
        """`sizes`: the sizes of the messages, by rank."""
        self._group, self._own, self._sizes, self._tag = group, own, sizes, tag
        if (levels := group.levels) is not None:
            senders, receivers = levels.represented_by(levels.rank), tuple(levels.deputies.values())
            self._direct = levels.mates
        else:
            senders = receivers = tuple(peer for peer in group.world.peers if peer not in group.neighbors)
            self._direct = tuple(group.neighbors)
        self._message = _tensor(own)
        self._inbox = {peer: torch.empty(sizes[peer], dtype=torch.uint8) for peer in senders}
        self.works = [group.recv(room, peer, tag) for peer, room in self._inbox.items()]
        for peer in self._direct:  # first: if one has ended the connection, no other peer may hear this message
            group.neighbors[peer].send_long(own, tag)
        self.works += [group.send(self._message, peer, tag) for peer in receivers]

    def arrived(self, wait: Callable[[Sequence[dist.Work]], None]) -> list[bytes]:
        """The messages, by rank. `wait`: waits for `works`. Call it once."""
        said = {self._group.world.rank: self._own}
        for peer in self._direct:
            said[peer] = self._group.neighbors[peer].recv_long(self._sizes[peer], self._tag)
        wait(self.works)
        said |= {rank: bytes(room.numpy()) for rank, room in self._inbox.items()}
        if self._group.levels is not None:
            self._pass_on(said, self._group.levels)
        return [said[rank] for rank in range(self._group.world.size)]

    def _pass_on(self, said: dict[int, bytes], levels: Levels) -> None:
        neighbors = self._group.neighbors
        gathered = b"".join(said[rank] for rank in levels.represented_by(levels.rank))
        for mate in levels.mates:
            neighbors[mate].send_long(gathered, self._tag)
        for mate in levels.mates:
            ranks = levels.represented_by(mate)
            raw = neighbors[mate].recv_long(sum(self._sizes[rank] for rank in ranks), self._tag)
            said |= _split(raw, ranks, self._sizes)


def gather(group: Group, own: bytes, among: Sequence[int]) -> list[bytes]:
    """The messages of these ranks, of any length, in their order: in two rounds, lengths first. Only these ranks come
    here; of each node they are the first ones. For a thread that can be left behind."""
    lengths = _exchange(group, _LENGTH.pack(len(own)), dict.fromkeys(among, _LENGTH.size), TAG_LENGTHS)
    sizes = {rank: _LENGTH.unpack(lengths[rank])[0] for rank in among}
    said = _exchange(group, own, sizes, TAG_TEXTS)
    return [said[rank] for rank in among]


def _exchange(group: Group, own: bytes, sizes: Mapping[int, int], tag: int) -> dict[int, bytes]:
    rank, levels = group.world.rank, group.levels
    mates = [peer for peer in (group.neighbors if levels is None else levels.mates) if peer in sizes]
    said = {rank: own}
    for mate in mates:
        group.neighbors[mate].send_long(own, tag)
    for mate in mates:
        said[mate] = group.neighbors[mate].recv_long(sizes[mate], tag)
    if levels is None:
        return said | _over_gloo(group, own, [(peer,) for peer in sizes if peer not in said], sizes, tag)
    nodes = [members for node in levels.nodes if (members := tuple(each for each in node if each in sizes))]
    home = next(node for node in nodes if rank in node)
    others = [node for node in nodes if node is not home]
    everyone_else = [each for node in others for each in node]
    if rank == home[0]:
        theirs = _over_gloo(group, b"".join(said[each] for each in home), others, sizes, tag)
        for mate in mates:
            group.neighbors[mate].send_long(b"".join(theirs[each] for each in everyone_else), tag)
    else:
        raw = group.neighbors[home[0]].recv_long(sum(sizes[each] for each in everyone_else), tag)
        theirs = _split(raw, everyone_else, sizes)
    return said | theirs


def _over_gloo(
    group: Group, own: bytes, others: Sequence[Sequence[int]], sizes: Mapping[int, int], tag: int
) -> dict[int, bytes]:
    """Swap with the first rank of each of these groups of ranks; it speaks for all of them."""
    inbox = {ranks: torch.empty(sum(sizes[rank] for rank in ranks), dtype=torch.uint8) for ranks in map(tuple, others)}
    message = _tensor(own)
    works = [group.recv(room, ranks[0], tag) for ranks, room in inbox.items() if room.numel()]
    works += [group.send(message, ranks[0], tag) for ranks in inbox if own]
    group.wait_here(works)
    said: dict[int, bytes] = {}
    for ranks, room in inbox.items():
        said |= _split(bytes(room.numpy()), ranks, sizes)
    return said


def _split(raw: bytes, ranks: Iterable[int], sizes: Mapping[int, int] | Sequence[int]) -> dict[int, bytes]:
    said = {}
    for rank in ranks:
        said[rank], raw = raw[: sizes[rank]], raw[sizes[rank] :]
    return said


def _tensor(payload: bytes) -> Tensor:
    return torch.frombuffer(bytearray(payload), dtype=torch.uint8) if payload else torch.empty(0, dtype=torch.uint8)
