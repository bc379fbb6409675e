"""Who talks to whom in levels, and how often the members of a generation ask rank 0's store."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch.distributed as dist

from everstep.engine.cards import swap_cards
from everstep.engine.levels import Levels, Nodes, nodes_of, single
from everstep.engine.world import World

WAIT_S = 60.0
SHAPES: tuple[Nodes, ...] = (
    ((0, 1), (2, 3)),
    ((0, 2, 4), (1, 3)),
    ((0,), (1, 2, 3, 4), (5, 6)),
    tuple(tuple(range(4 * node, 4 * node + 4)) for node in range(8)),
)


@pytest.mark.parametrize(
    ("seen", "nodes"),
    [
        ([[1], [0], [3], [2]], ((0, 1), (2, 3))),
        ([[2], [3], [0], [1]], ((0, 2), (1, 3))),  # ranks of a node need not follow each other
        ([[1, 2], [0], [0]], ((0, 1), (2,))),  # 1 and 2 do not see each other
        ([[1], [], []], ((0,), (1,), (2,))),  # only one way
    ],
)
def test_the_members_of_a_node_are_all_neighbors_of_each_other(seen: list[list[int]], nodes: Nodes) -> None:
    assert nodes_of(seen) == nodes


@pytest.mark.parametrize("nodes", SHAPES)
def test_each_rank_has_one_deputy_in_each_other_node_and_both_sides_know_it(nodes: Nodes) -> None:
    levels = {rank: Levels(nodes, rank) for node in nodes for rank in node}
    for rank, mine in levels.items():
        assert sorted(mine.deputies) == [node for node in range(len(nodes)) if node != mine.node]
        for deputy in mine.deputies.values():
            there = levels[deputy]
            assert rank in there.represented_by(deputy)
            assert sum(rank in there.represented_by(member) for member in nodes[there.node]) == 1


@pytest.mark.parametrize("nodes", SHAPES)
def test_every_node_hears_from_every_rank(nodes: Nodes) -> None:
    everyone = {rank for node in nodes for rank in node}
    for rank in everyone:
        mine = Levels(nodes, rank)
        members = (rank, *mine.mates)
        assert {*members, *(ward for member in members for ward in mine.represented_by(member))} == everyone


def test_in_nodes_of_equal_size_a_worker_has_one_connection_per_other_node() -> None:
    eight_times_four = Levels(SHAPES[-1], 5)
    assert eight_times_four.represented_by(5) == (1, 9, 13, 17, 21, 25, 29)
    assert sorted(eight_times_four.deputies.values()) == [1, 9, 13, 17, 21, 25, 29]


@pytest.mark.parametrize(("nodes", "is_useful"), [(single(4), False), (((0, 1, 2),), False), (SHAPES[0], True)])
def test_levels_need_several_nodes_and_one_with_several_members(nodes: Nodes, is_useful: bool) -> None:
    assert Levels(nodes, 0).is_useful is is_useful


class Counted(dist.HashStore):
    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[str] = Counter()
        self._lock = threading.Lock()

    def _count(self, name: str) -> None:
        with self._lock:
            self.requests[name] += 1

    def set(self, key: str, value: Any) -> None:
        self._count("set")
        super().set(key, value)

    def get(self, key: str) -> bytes:
        self._count("get")
        return super().get(key)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self._count("multi_get")
        return super().multi_get(keys)


@pytest.mark.parametrize("size", [2, 24])
def test_all_know_all_cards_after_two_requests_each(size: int) -> None:
    store = Counted()
    worlds = [World(generation=1, rank=rank, size=size) for rank in range(size)]
    with ThreadPoolExecutor(size) as threads:
        books = [threads.submit(swap_cards, store, world, "card", {"of": [world.rank]}) for world in worlds]
        assert [book.result(WAIT_S) for book in books] == [[{"of": [rank]} for rank in range(size)]] * size
    assert store.requests == {"set": size + 1, "get": size, "multi_get": 1}
