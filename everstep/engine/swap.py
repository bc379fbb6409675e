"""A small message from each worker to all others: the headers and pulses of a step.

Neighbors get it over a Unix socket, the others over gloo. In levels, a message crosses to each other node once, and a
deputy passes it on to the members of its node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from everstep.engine.neighbors import SMALL_BYTES, Neighbor

if TYPE_CHECKING:
    from everstep.engine.group import Group


class Swap:
    """One exchange, under way: when `works` have ended, all messages have arrived or are about to."""

    def __init__(self, group: Group, own: bytes, sizes: Sequence[int], tag: int) -> None:
        """`sizes`: the sizes of the messages, by rank."""
        self._group, self._own, self._sizes, self._tag = group, own, sizes, tag
        self._message = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        if (levels := group.levels) is not None:
            senders, receivers = levels.represented_by(levels.rank), tuple(levels.deputies.values())
            direct = levels.mates
        else:
            senders = tuple(peer for peer in group.world.peers if not self._is_direct(peer, sizes[peer]))
            receivers = tuple(peer for peer in group.world.peers if not self._is_direct(peer, len(own)))
            direct = tuple(peer for peer in group.world.peers if self._is_direct(peer, len(own)))
        self._inbox = {peer: torch.empty(sizes[peer], dtype=torch.uint8) for peer in senders}
        self.works = [group.recv(room, peer, tag) for peer, room in self._inbox.items()]
        for peer in direct:  # first: if one has ended the connection, no other peer may hear this message
            _send(group.neighbors[peer], own, tag)
        self.works += [group.send(self._message, peer, tag) for peer in receivers]

    def arrived(self) -> list[bytes]:
        """The messages, by rank. Waits for those from neighbors. Call it once."""
        said = {rank: bytes(room.numpy()) for rank, room in self._inbox.items()} | {self._group.world.rank: self._own}
        if self._group.levels is None:
            for peer in self._group.world.peers:
                if peer not in said:
                    said[peer] = _recv(self._group.neighbors[peer], self._sizes[peer], self._tag)
        else:
            self._pass_on(said)
        return [said[rank] for rank in range(self._group.world.size)]

    def _pass_on(self, said: dict[int, bytes]) -> None:
        levels, neighbors = self._group.levels, self._group.neighbors
        assert levels is not None
        gathered = b"".join(said[rank] for rank in levels.represented_by(levels.rank))
        for mate in levels.mates:
            _send(neighbors[mate], gathered, self._tag)
        for mate in levels.mates:
            said[mate] = _recv(neighbors[mate], self._sizes[mate], self._tag)
            ranks = levels.represented_by(mate)
            raw = _recv(neighbors[mate], sum(self._sizes[rank] for rank in ranks), self._tag)
            for rank in ranks:
                said[rank], raw = raw[: self._sizes[rank]], raw[self._sizes[rank] :]

    def _is_direct(self, peer: int, num_bytes: int) -> bool:
        return peer in self._group.neighbors and num_bytes <= SMALL_BYTES


def _send(neighbor: Neighbor, payload: bytes, tag: int) -> None:
    """Send a payload of any length; nothing if it is empty."""
    for start in range(0, len(payload), SMALL_BYTES):
        neighbor.send(payload[start : start + SMALL_BYTES], tag)


def _recv(neighbor: Neighbor, num_bytes: int, tag: int) -> bytes:
    pieces = [neighbor.recv(tag) for _ in range(0, num_bytes, SMALL_BYTES)]
    return b"".join(pieces)
