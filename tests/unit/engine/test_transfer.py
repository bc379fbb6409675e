"""The routes of a state (what travels on them: tests/contracts/states)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from everstep.engine.state_routes import Route, find_routes


def neighbors(machines: Sequence[Sequence[int]]) -> list[list[int]]:
    size = sum(map(len, machines))
    return [[each for m in machines if rank in m for each in m if each != rank] for rank in range(size)]


def test_receivers_on_one_machine_follow_each_other() -> None:
    routes = find_routes(1, [0, 2, 3, 4, 5], neighbors([[0, 1], [2, 4], [3, 5]]))

    assert routes == {
        1: Route(following=0),
        0: Route(source=1, following=2),
        2: Route(source=0, following=4),
        4: Route(source=2, following=3),
        3: Route(source=4, following=5),
        5: Route(source=3),
    }


def test_without_receivers_nothing_is_sent() -> None:
    assert find_routes(0, [], [[1], [0]]) == {0: Route()}


@given(st.lists(st.integers(0, 3), min_size=2, max_size=12), st.data())
def test_the_state_reaches_each_receiver_once_and_crosses_to_each_machine_once(
    machine_of: list[int], data: st.DataObject
) -> None:
    size = len(machine_of)
    machines = [[rank for rank in range(size) if machine_of[rank] == number] for number in range(4)]
    leader = data.draw(st.integers(0, size - 1))
    receivers = data.draw(st.lists(st.integers(0, size - 1).filter(lambda rank: rank != leader), unique=True))
    routes = find_routes(leader, receivers, neighbors(machines))

    chain = [leader]
    while (following := routes[chain[-1]].following) is not None:
        assert routes[following].source == chain[-1]
        chain.append(following)
    assert sorted(chain) == sorted([leader, *receivers]) and set(routes) == set(chain)
    crossings = [machine_of[there] for here, there in pairwise(chain) if machine_of[here] != machine_of[there]]
    assert len(crossings) == len({machine_of[rank] for rank in receivers} - {machine_of[leader]})
