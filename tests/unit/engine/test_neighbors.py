"""Messages between workers on one machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from everstep.engine import shared_memory
from everstep.engine.cards import swap_cards
from everstep.engine.levels import Nodes
from everstep.engine.neighbors import PACKET_BYTES, Door, Neighbor
from everstep.engine.world import World
from everstep.ipc.local_socket import pair

WAIT_S = 60.0


def find_neighbors(world: World, store: dist.Store) -> tuple[dict[int, Neighbor], Nodes]:
    with Door(world) as door:
        cards = swap_cards(store, world, "card", door.card)
        return door.find(cards, lambda seen: swap_cards(store, world, "seen", seen))


@pytest.fixture
def two() -> Iterator[tuple[Neighbor, Neighbor]]:
    one, other = (Neighbor(1, line) for line in pair())
    yield one, other
    one.close()
    other.close()


@pytest.fixture
def beside() -> Iterator[Callable[..., Future[object]]]:
    with ThreadPoolExecutor() as threads:
        yield threads.submit


def test_messages_are_matched_by_tag_and_within_it_by_order(two: tuple[Neighbor, Neighbor]) -> None:
    one, other = two
    for payload, tag in ((b"first", 7), (b"else", 8), (b"", 7), (b"x" * PACKET_BYTES, 9)):
        one.send(payload, tag)
    assert other.recv(9) == b"x" * PACKET_BYTES
    assert [other.recv(7), other.recv(8), other.recv(7)] == [b"first", b"else", b""]


def test_two_that_only_send_do_not_wait_for_each_other(
    two: tuple[Neighbor, Neighbor], beside: Callable[..., Future[object]]
) -> None:
    num_messages = 5_000  # far more than the sockets hold

    def talk(mine: Neighbor) -> list[bytes]:
        for number in range(num_messages):
            mine.send(number.to_bytes(4, "little"), number)
        return [mine.recv(number) for number in range(num_messages)]

    expected = [number.to_bytes(4, "little") for number in range(num_messages)]
    for told in [beside(talk, each) for each in two]:
        assert told.result(WAIT_S) == expected


def test_three_that_send_in_a_circle_do_not_wait_for_each_other(beside: Callable[..., Future[object]]) -> None:
    num_messages = 2_000
    lines = [pair() for _ in range(3)]  # from each to the next
    circle = [(Neighbor(1, lines[n][0]), Neighbor(1, lines[n - 1][1])) for n in range(3)]  # the next, the one before
    for following, before in circle:
        Neighbor.put_together([following, before])

    def talk(following: Neighbor, before: Neighbor) -> list[bytes]:
        for number in range(num_messages):
            following.send(number.to_bytes(4, "little"), 1)
        return [before.recv(1) for _ in range(num_messages)]

    expected = [number.to_bytes(4, "little") for number in range(num_messages)]
    for told in [beside(talk, *each) for each in circle]:
        assert told.result(WAIT_S) == expected
    for each in circle:
        each[0].close()
        each[1].close()


def test_a_timeout_that_the_script_sets_for_all_sockets_is_not_ours(beside: Callable[..., Future[object]]) -> None:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(0.01)
    try:
        one, other = (Neighbor(1, line) for line in pair())
        told = beside(other.recv, 1)
        with pytest.raises(TimeoutError):
            told.result(0.2)
        one.send(b"late", 1)
        assert told.result(WAIT_S) == b"late"
        one.close()
        other.close()
    finally:
        socket.setdefaulttimeout(before)


def test_whoever_waits_is_set_free_by_a_cut(
    two: tuple[Neighbor, Neighbor], beside: Callable[..., Future[object]]
) -> None:
    one, other = two
    waiting = [beside(one.recv, 1), beside(other.recv, 1)]
    one.cut()
    one.cut()
    for each in waiting:
        with pytest.raises(ConnectionError):
            each.result(WAIT_S)
    with pytest.raises(ConnectionError):
        other.send(b"", 1)


def test_that_another_has_ended_is_nothing_to_whoever_waits_here(beside: Callable[..., Future[object]]) -> None:
    (mine, first), (also_mine, second) = ([Neighbor(1, line) for line in pair()] for _ in range(2))
    Neighbor.put_together([mine, also_mine])
    told = beside(also_mine.recv, 1)
    first.send(b"all that I have to say", 1)
    first.close()
    with pytest.raises(TimeoutError):
        told.result(0.2)
    second.send(b"late", 1)
    assert told.result(WAIT_S) == b"late"
    assert mine.recv(1) == b"all that I have to say"
    with pytest.raises(ConnectionError):
        mine.recv(1)
    for each in (mine, also_mine, second):
        each.close()


def test_an_end_is_seen_whatever_is_still_to_be_read(two: tuple[Neighbor, Neighbor]) -> None:
    one, other = two
    one.send(b"unread", 1)
    assert not other.has_ended()
    one.cut()
    assert other.has_ended()


@pytest.mark.parametrize("has_unread", [False, True])
def test_what_was_sent_before_the_end_still_arrives(two: tuple[Neighbor, Neighbor], has_unread: bool) -> None:
    one, other = two
    if has_unread:
        other.send(b"never read", 1)
    one.send(b"last words", 1)
    one.close()
    assert other.recv(1) == b"last words"
    with pytest.raises(ConnectionError):
        other.recv(1)


def test_all_on_one_machine_find_each_other(beside: Callable[..., Future[object]]) -> None:
    size = 4
    store = dist.HashStore()
    worlds = [World(generation=1, rank=r, size=size, store_address="", store_port=0) for r in range(size)]
    found = [each.result(WAIT_S) for each in [beside(find_neighbors, world, store) for world in worlds]]
    by_rank: list[dict[int, Neighbor]] = [neighbors for neighbors, _ in found]  # type: ignore[misc]
    assert [nodes for _, nodes in found] == [((0, 1, 2, 3),)] * size  # type: ignore[misc]
    assert [sorted(neighbors) for neighbors in by_rank] == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]
    for rank, neighbors in enumerate(by_rank):
        for peer, neighbor in neighbors.items():
            neighbor.send(f"{rank} to {peer}".encode(), 1)
    for rank, neighbors in enumerate(by_rank):
        for peer, neighbor in neighbors.items():
            assert neighbor.recv(1) == f"{peer} to {rank}".encode()
            neighbor.close()


@pytest.fixture
def stranger() -> Iterator[Callable[[int], int]]:
    """Starts a process that has this file open, and nothing to do with us; its number."""
    started: list[subprocess.Popen[bytes]] = []

    def start(descriptor: int) -> int:
        started.append(subprocess.Popen(["sleep", "600"], pass_fds=[descriptor]))
        return started[-1].pid

    yield start
    for each in started:
        each.kill()
        each.wait()


def test_a_file_of_a_stranger_is_not_opened(
    tmp_path: Path, stranger: Callable[[int], int], beside: Callable[..., Future[object]]
) -> None:
    """A pipe without a writer would never open; of a large file all would be read."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "data").write_bytes(b"secret")
    for name in ("pipe", "data"):
        descriptor = os.open(tmp_path / name, os.O_RDONLY | os.O_NONBLOCK)
        told = beside(shared_memory.can_open, stranger(descriptor), descriptor, b"secret")
        try:
            assert told.result(WAIT_S / 6) is False
        finally:
            os.close(os.open(tmp_path / name, os.O_WRONLY | os.O_NONBLOCK))  # ends a wait for the pipe
            os.close(descriptor)


def test_a_block_is_opened_only_if_it_has_the_size_that_was_told() -> None:
    block = shared_memory.SharedBlock(6)
    block.bytes.copy_(torch.frombuffer(bytearray(b"secret"), dtype=torch.uint8))
    assert shared_memory.can_open(os.getpid(), block.descriptor, b"secret")
    assert not shared_memory.can_open(os.getpid(), block.descriptor, b"secre")
    assert not shared_memory.can_open(os.getpid(), block.descriptor, b"another secret")


def test_one_on_another_machine_is_not_looked_for_here(beside: Callable[..., Future[object]]) -> None:
    store = _Elsewhere()
    worlds = [World(generation=1, rank=r, size=3, store_address="", store_port=0) for r in range(3)]
    found = [each.result(WAIT_S) for each in [beside(find_neighbors, world, store) for world in worlds]]
    assert [sorted(neighbors) for neighbors, _ in found] == [[1], [0], []]  # type: ignore[misc]
    assert [nodes for _, nodes in found] == [((0, 1), (2,))] * 3  # type: ignore[misc]
    for neighbors, _ in found:  # type: ignore[misc]
        for each in neighbors.values():  # type: ignore[has-type]
            each.close()


class _Elsewhere(dist.HashStore):
    """As if rank 2 were on another machine, where the same numbers are in use."""

    def set(self, key: str, value: str) -> None:
        super().set(key, json.dumps([*json.loads(value)[:4], "elsewhere"]) if key == "card/2" else value)


def test_a_stranger_at_the_door_is_sent_away(beside: Callable[..., Future[object]]) -> None:
    """Somebody has read the name of the socket, and not the secret."""
    store = _Watched()
    worlds = [World(generation=1, rank=r, size=2, store_address="", store_port=0) for r in range(2)]
    first = beside(find_neighbors, worlds[0], store)
    assert store.has_card.wait(WAIT_S)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(store.door)
        stranger.send((1).to_bytes(8, "little") + bytes(16))
        second = beside(find_neighbors, worlds[1], store)
        (mine,), (other,) = (each.result(WAIT_S)[0].values() for each in (first, second))  # type: ignore[index]
        assert stranger.recv(100) == b""
    mine.send(b"between us", 1)
    assert other.recv(1) == b"between us"
    mine.close()
    other.close()


class _Watched(dist.HashStore):
    """Tells of the first rank's card."""

    def __init__(self) -> None:
        super().__init__()
        self.has_card = threading.Event()
        self.door = b""

    def set(self, key: str, value: str) -> None:
        super().set(key, value)
        if key == "card/0":
            self.door = bytes.fromhex(json.loads(value)[3])
            self.has_card.set()
