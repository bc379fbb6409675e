"""Peers on the same machine: we read their memory and they ours, and messages go by a Unix socket for each pair.

gloo would bring these messages too, but its event loop spins whenever the thread that uses a connection is off the
processor; where every core has a worker, that cost more than the sums themselves. Which peers are neighbors is tried
out when a group is formed, both ways."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from everstep.engine import shared_memory
from everstep.engine.levels import Nodes, nodes_of
from everstep.engine.world import World
from everstep.ipc.local_socket import peer_user

PACKET_BYTES = 16 << 10

_ANSWER_S = 10.0
_TAG, _HELLO = struct.Struct("<q"), struct.Struct("<q16s")


class Neighbor:
    """Messages to and from one peer, matched by their tags and, within a tag, by their order. One thread at a time;
    only `cut` may be called beside it. OSError when the connection is over.

    A worker that waits here takes in what all neighbors send, so that full sockets cannot make a cycle of waits."""

    def __init__(self, pid: int, line: socket.socket) -> None:
        self.pid = pid
        self._line = line
        self._line.settimeout(None)  # whatever the script has set for all sockets
        self._early: dict[int, deque[bytes]] = defaultdict(deque)  # come before they were asked for, by tag
        self._is_over = False  # nothing more will come
        self._all: Sequence[Neighbor] = (self,)

    @classmethod
    def put_together(cls, neighbors: Sequence[Neighbor]) -> None:
        for each in neighbors:
            each._all = neighbors

    def send(self, payload: bytes, tag: int) -> None:
        packet = _TAG.pack(tag) + payload
        while True:
            try:
                self._line.send(packet, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                return
            except BlockingIOError:
                self._await(select.POLLIN | select.POLLOUT)
                self._take()

    def send_long(self, payload: bytes, tag: int) -> None:
        """A message of any length whose length the peer knows."""
        for start in range(0, len(payload), PACKET_BYTES):
            self.send(payload[start : start + PACKET_BYTES], tag)

    def recv_long(self, num_bytes: int, tag: int) -> bytes:
        return b"".join(self.recv(tag) for _ in range(0, num_bytes, PACKET_BYTES))

    def recv(self, tag: int) -> bytes:
        waiting = self._early[tag]
        while not waiting:
            if not self._take():
                self._await(select.POLLIN)
        return waiting.popleft()

    def fileno(self) -> int:
        return self._line.fileno()

    def has_ended(self) -> bool:
        """Whether the peer has cut the connection, read or unread messages aside."""
        poll = select.poll()
        poll.register(self._line, 0)  # an end is always reported
        return bool(poll.poll(0))

    def cut(self) -> None:
        """End it, for the peer and for a thread that waits here. Safe from any thread."""
        try:
            self._line.shutdown(socket.SHUT_RDWR)
        except OSError:  # it is over already
            pass

    def close(self) -> None:
        self.cut()
        self._line.close()

    def _await(self, events: int) -> None:
        """Until something happens here; what others have sent is taken in meanwhile. That one of them has ended is its
        own affair: it may have had nothing more to say."""
        poll = select.poll()
        for each in self._all:
            if each is self or not each._is_over:
                poll.register(each._line, events if each is self else select.POLLIN)
        ready = {descriptor for descriptor, event in poll.poll() if event & select.POLLIN}
        for each in self._all:
            if each is not self and each._line.fileno() in ready:
                with contextlib.suppress(ConnectionError):
                    each._take()

    def _take(self) -> bool:
        """Whether something was there."""
        if self._is_over:
            raise ConnectionResetError("a neighbor has closed its connection")
        try:
            packet = self._receive()
        except BlockingIOError:
            return False
        if not packet:
            self._is_over = True
            raise ConnectionResetError("a neighbor has closed its connection")
        self._early[_TAG.unpack_from(packet)[0]].append(packet[_TAG.size :])
        return True

    def _receive(self) -> bytes:
        try:
            return self._line.recv(PACKET_BYTES + _TAG.size, socket.MSG_DONTWAIT)
        except ConnectionResetError:  # said once, if it has left something unread; what it sent before is still there
            return self._line.recv(PACKET_BYTES + _TAG.size, socket.MSG_DONTWAIT)


class Door:
    """How neighbors find this worker: a block with a secret, and a socket, both described on its card. A worker on the
    same machine opens the block and connects to the socket. Use it in a `with` block, until `find` has returned."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._machine = shared_memory.machine() if shared_memory.is_available() else None
        self._secret = os.urandom(16)
        self._socket: socket.socket | None = None
        self.card: list[Any] | None = None  # None: no neighbors
        if self._machine is None:
            return
        self._block = shared_memory.SharedBlock(len(self._secret))
        self._block.bytes.copy_(torch.frombuffer(bytearray(self._secret), dtype=torch.uint8))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(b"\0everstep-" + os.urandom(16).hex().encode())  # in no folder: ends with the socket
        self._socket.listen(world.size)
        self._socket.settimeout(_ANSWER_S)
        name = self._socket.getsockname().hex()
        self.card = [os.getpid(), self._block.descriptor, self._secret.hex(), name, self._machine]

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *error: object) -> None:
        if self._socket is not None:
            self._socket.close()

    def find(
        self, cards: Sequence[list[Any] | None], swap: Callable[[list[int]], Sequence[list[int]]]
    ) -> tuple[dict[int, Neighbor], Nodes]:
        """Neighbors by rank, and which ranks share a node. `cards`: those of all members, by rank. `swap`: tells all
        members which ranks this worker could use, and returns what each member could use."""
        lines: dict[int, socket.socket] = {}
        try:
            seen = self._try_all(cards, lines)
            # Await all answers even without neighbors: until then, others may read the block.
            answers = swap(seen)
            mutual = {rank for rank in seen if self._world.rank in answers[rank]}
            for rank in lines.keys() - mutual:
                lines.pop(rank).close()
            self._answer(lines, {rank for rank in mutual if rank > self._world.rank})
        except BaseException:
            for line in lines.values():
                line.close()
            raise
        neighbors = {rank: Neighbor(card[0], lines[rank]) for rank in sorted(lines) if (card := cards[rank])}
        Neighbor.put_together(list(neighbors.values()))
        return neighbors, nodes_of(answers)

    def _try_all(self, cards: Sequence[list[Any] | None], lines: dict[int, socket.socket]) -> list[int]:
        seen: list[int] = []
        for rank, card in enumerate(cards):
            if rank == self._world.rank or card is None or self._machine is None:
                continue
            pid, descriptor, content, name, where = card
            if where != self._machine:
                continue  # there this process number is somebody else's
            if not shared_memory.can_open(pid, descriptor, bytes.fromhex(content)):
                continue
            if rank < self._world.rank:  # of two ranks, the higher one calls
                line = _call(bytes.fromhex(name), _HELLO.pack(self._world.rank, bytes.fromhex(content)))
                if line is None:
                    continue
                lines[rank] = line
            seen.append(rank)
        return seen

    def _answer(self, lines: dict[int, socket.socket], expected: set[int]) -> None:
        """Accept the calls of these ranks. Each rank called before it said so, so this does not wait."""
        while expected - lines.keys():
            assert self._socket is not None
            line, _ = self._socket.accept()
            line.settimeout(_ANSWER_S)
            hello = line.recv(_HELLO.size) if peer_user(line) == os.geteuid() else b""
            rank, shown = _HELLO.unpack(hello) if len(hello) == _HELLO.size else (-1, b"")
            if rank in expected and shown == self._secret:
                lines[rank] = line
            else:
                line.close()


def _call(name: bytes, hello: bytes) -> socket.socket | None:
    """None: there is no way to it, as from another network namespace, or it is another user's."""
    try:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError:  # too many files are open
        return None
    try:
        line.setblocking(False)  # a listener with a full backlog is not usable either
        line.connect(name)
        if peer_user(line) == os.geteuid():
            line.send(hello, socket.MSG_NOSIGNAL)
            return line
    except OSError:
        pass
    line.close()
    return None
