"""Where a worker accepts a state, and from whom."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from everstep.engine.group import Group
from everstep.engine.inlet import Inlet, connect
from everstep.engine.neighbors import Neighbor
from everstep.engine.world import World
from everstep.errors import PeerLost

WAIT_S = 30.0


def group_of_two() -> tuple[Group, socket.socket]:
    """And the peer's end of its only connection."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Group(World(generation=1, rank=0, size=2), {1: Neighbor(os.getpid(), ours)}), theirs


def test_only_who_knows_the_key_is_accepted() -> None:
    group, peer = group_of_two()
    with Inlet("127.0.0.1") as inlet, ThreadPoolExecutor(1) as thread, peer:
        accepted = thread.submit(inlet.accept, group)
        address, port, key = inlet.card
        for stranger in (bytes(16), b"too short"):
            with connect([address, port, stranger.hex()]) as sock:
                sock.shutdown(socket.SHUT_WR)
                assert sock.recv(1) == b""  # turned away
        with connect([address, port, key]) as sender, accepted.result(WAIT_S) as receiver:
            sender.sendall(b"state")
            assert receiver.recv(5, socket.MSG_WAITALL) == b"state"
    group.close()


@pytest.mark.parametrize("who", ["peer", "group"])
def test_a_worker_waits_for_no_sender_when_a_peer_or_the_group_has_ended(who: str) -> None:
    group, peer = group_of_two()
    with Inlet("127.0.0.1") as inlet, ThreadPoolExecutor(1) as thread:
        accepted = thread.submit(inlet.accept, group)
        peer.close() if who == "peer" else group.break_()
        with pytest.raises(PeerLost, match="before the state arrived"):
            accepted.result(WAIT_S)
    group.close()
    peer.close()
