"""The routes of a state, and what its sender remembers (what travels on them: tests/contracts/states)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from everstep.engine import state_sender
from everstep.engine.parcel import Outgoing
from everstep.engine.state_routes import Route, find_routes
from everstep.engine.transfer import StateChanged


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


def test_a_sender_hears_that_its_last_state_has_changed_before_it_sends_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The generation may close before the thread that sends has read the receiver's verdict."""
    weights, letters, threads = torch.zeros(1000), list[bytes](), list[threading.Thread]()
    steadiness = SimpleNamespace(is_steady=True, is_intact=True, note_change=lambda: None)
    work: Any = SimpleNamespace(step=5, steadiness=steadiness, state=lambda: {"weights": weights})
    group: Any = SimpleNamespace(world=SimpleNamespace(generation=2))

    def send(
        parcel: Outgoing, group: Any, route: Route, inlets: Any, on_failure: Callable[[Exception], None]
    ) -> threading.Event:
        letters.append(parcel.letter)
        parcel.sum_up()
        is_over = threading.Event()

        def end() -> None:
            on_failure(StateChanged("the state changed on its way"))
            is_over.set()

        threads.append(threading.Timer(0.2, end))
        threads[-1].start()
        return is_over

    monkeypatch.setattr(state_sender, "send_state", send)
    sender = state_sender.StateSender(work, lambda generation, reason, must_probe: None)
    sender.send(group, Route(following=1), [], "w0", is_between_steps=False)
    weights += 1  # the script is in the middle of a change
    sender.send(group, Route(following=1), [], "w0", is_between_steps=False)
    for thread in threads:
        thread.join()

    assert [b"refusal" in letter for letter in letters] == [False, True]
