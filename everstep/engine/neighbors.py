"""Peers on the same machine: we read their memory and they ours, and small messages go by a unix socket for each pair.

gloo would bring these messages too, but its event loop spins whenever the thread that uses a connection is off the
processor; where every core has a worker, that cost more than the sums themselves. Which peers are neighbors is tried
out when a group is formed, both ways."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
from collections import defaultdict, deque
from collections.abc import Sequence

import torch
import torch.distributed as dist

from everstep.engine import shared_memory
from everstep.engine.world import World
from everstep.ipc.local_socket import peer_user

SMALL_BYTES = 16 << 10  # what is larger goes by gloo, which needs no room for it

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

    def recv(self, tag: int) -> bytes:
        waiting = self._early[tag]
        while not waiting:
            if not self._take():
                self._await(select.POLLIN)
        return waiting.popleft()

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
            return self._line.recv(SMALL_BYTES + _TAG.size, socket.MSG_DONTWAIT)
        except ConnectionResetError:  # said once, if it has left something unread; what it sent before is still there
            return self._line.recv(SMALL_BYTES + _TAG.size, socket.MSG_DONTWAIT)


def find_neighbors(world: World, store: dist.Store) -> dict[int, Neighbor]:
    """By rank. Each worker shows a block with a secret and a socket, and reports whose it could use."""
    machine = shared_memory.machine()
    if not shared_memory.is_available() or machine is None:
        store.set(f"card/{world.rank}", json.dumps(None))
        store.set(f"seen/{world.rank}", json.dumps([]))
        return {}
    secret = os.urandom(16)
    block = shared_memory.SharedBlock(len(secret))
    block.bytes.copy_(torch.frombuffer(bytearray(secret), dtype=torch.uint8))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(b"\0everstep-" + os.urandom(16).hex().encode())  # in no folder: it goes with the socket
        door.listen(world.size)
        door.settimeout(_ANSWER_S)
        card = [os.getpid(), block.descriptor, secret.hex(), door.getsockname().hex(), machine]
        store.set(f"card/{world.rank}", json.dumps(card))
        cards = {rank: card for rank in world.peers if (card := json.loads(store.get(f"card/{rank}"))) is not None}
        lines: dict[int, socket.socket] = {}
        seen = []
        for rank, (pid, descriptor, content, name, where) in cards.items():
            if where != machine:
                continue  # there this process number is somebody else's
            if not shared_memory.can_open(pid, descriptor, bytes.fromhex(content)):
                continue
            if rank < world.rank:  # of two, the later one calls
                line = _call(bytes.fromhex(name), _HELLO.pack(world.rank, bytes.fromhex(content)))
                if line is None:
                    continue
                lines[rank] = line
            seen.append(rank)
        store.set(f"seen/{world.rank}", json.dumps(seen))
        # All answers are awaited, also without neighbors: until then the block must be there to be read.
        answers = {rank: json.loads(store.get(f"seen/{rank}")) for rank in world.peers}
        mutual = {rank for rank in seen if world.rank in answers[rank]}
        for rank in lines.keys() - mutual:
            lines.pop(rank).close()
        lines |= _answer(door, secret, {rank for rank in mutual if rank > world.rank})
    neighbors = {rank: Neighbor(cards[rank][0], line) for rank, line in lines.items()}
    Neighbor.put_together(list(neighbors.values()))
    return neighbors


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


def _answer(door: socket.socket, secret: bytes, expected: set[int]) -> dict[int, socket.socket]:
    """The calls of these ranks. They have been made before their ranks said so: no waiting here."""
    lines: dict[int, socket.socket] = {}
    while expected - lines.keys():
        line, _ = door.accept()
        line.settimeout(_ANSWER_S)
        hello = line.recv(_HELLO.size) if peer_user(line) == os.geteuid() else b""
        rank, shown = _HELLO.unpack(hello) if len(hello) == _HELLO.size else (-1, b"")
        if rank in expected and shown == secret:
            lines[rank] = line
        else:
            line.close()
    return lines
