"""How many nodes there should be, and when to give up."""

from __future__ import annotations

from dataclasses import replace

from everstep.platforms.fleet import MAX_SHORT_LIVES, SHORT_LIFE_S, FleetNode, decide_fleet

NOW = 1000.0


def node(number: int) -> FleetNode:
    return FleetNode(number=number, name=f"n{number}", started_at=NOW - 500)


def ended(number: int, *, lived_s: float = 300.0, at: float = NOW) -> FleetNode:
    return replace(node(number), is_over=True, started_at=at - lived_s, ended_at=at, reason=f"n{number}: exit code 1")


def test_all_are_made_at_the_start() -> None:
    assert decide_fleet([], 3, now=NOW).add == (0, 1, 2)


def test_as_many_as_wanted_is_fine() -> None:
    orders = decide_fleet([node(0), node(1)], 2, now=NOW)
    assert (orders.add, orders.remove, orders.reason) == ((), (), "2 nodes, as wanted")


def test_one_that_is_gone_is_replaced_by_a_new_number() -> None:
    assert decide_fleet([node(0), ended(1)], 2, now=NOW).add == (2,)


def test_the_newest_leave_first() -> None:
    orders = decide_fleet([node(2), node(0), node(1)], 1, now=NOW)
    assert orders.remove == ("n1", "n2")
    assert "3 nodes, 1 wanted" in orders.reason


def test_those_that_leave_are_neither_counted_nor_asked_again() -> None:
    leaving = replace(node(1), is_leaving=True)
    assert decide_fleet([node(0), leaving], 1, now=NOW).remove == ()
    assert decide_fleet([node(0), leaving], 2, now=NOW).add == (2,)


def test_short_lives_are_followed_by_ever_longer_pauses_and_then_by_an_end() -> None:
    nodes = [ended(number, lived_s=2.0) for number in range(2)]
    assert decide_fleet(nodes, 1, now=NOW + 4.9).add == ()
    assert decide_fleet(nodes, 1, now=NOW + 5.1).add == (2,)
    nodes = [ended(number, lived_s=2.0) for number in range(MAX_SHORT_LIVES)]
    orders = decide_fleet(nodes, 1, now=NOW + 1000)
    assert orders.failure == f"4 nodes ended within {SHORT_LIFE_S:.0f} s of their start; the last: n3: exit code 1"


def test_one_that_has_proved_itself_begins_a_new_count() -> None:
    nodes = [ended(number, lived_s=2.0, at=NOW + number) for number in range(3)]
    nodes += [ended(3, at=NOW + 10), ended(4, lived_s=2.0, at=NOW + 11)]
    assert decide_fleet(nodes, 1, now=NOW + 100).add == (5,)


def test_preemption_is_nobodys_fault() -> None:
    lost = [replace(ended(number, lived_s=1.0), is_lost=True) for number in range(10)]
    assert decide_fleet(lost, 1, now=NOW).add == (10,)
    assert not decide_fleet(lost, 1, now=NOW).failure
