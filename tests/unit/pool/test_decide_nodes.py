"""Demand makes a pool's nodes, and lets them go."""

from __future__ import annotations

from dataclasses import replace

from everstep.platforms.fleet import FleetNode
from everstep.pool.decide_nodes import LOST_S, NodeOrders, NodesSpec, PoolNode, decide_nodes, most_slots

NOW = 10_000.0
SPEC = NodesSpec(min_nodes=0, max_nodes=4, slots_per_node=2, idle_s=600.0)


def coming(number: int, *, since_s: float = 5.0) -> PoolNode:
    began_at = NOW - since_s
    made = FleetNode(number=number, name=f"n{number}", started_at=began_at)
    return PoolNode(made=made, quiet_since=began_at)


def joined(number: int, *, num_slots: int = 2, quiet_s: float = 0.0, is_busy: bool = False) -> PoolNode:
    made = FleetNode(number=number, name=f"n{number}", started_at=NOW - 5000.0)
    return PoolNode(
        made=made,
        num_slots=num_slots,
        has_joined=True,
        is_present=True,
        is_busy=is_busy,
        quiet_since=NOW - quiet_s,
    )


def over(number: int, *, lived_s: float = 5000.0, ended_s: float = 0.0, is_lost: bool = False) -> PoolNode:
    made = FleetNode(
        number=number,
        name=f"n{number}",
        is_over=True,
        is_lost=is_lost,
        started_at=NOW - ended_s - lived_s,
        ended_at=NOW - ended_s,
        reason=f"n{number}: no torch",
    )
    return PoolNode(made=made)


def decide(num_wanted: int, *nodes: PoolNode, spec: NodesSpec = SPEC, now: float = NOW) -> NodeOrders:
    return decide_nodes(num_wanted, nodes, spec, now)


def test_an_empty_pool_without_demand_stays_empty() -> None:
    assert decide(0) == NodeOrders(reason="0 nodes; 0 slots wanted")


def test_as_many_nodes_are_made_as_the_slots_need_and_no_more_than_the_most() -> None:
    assert decide(1).add == (0,)
    assert decide(3).add == (0, 1)
    assert decide(100).add == (0, 1, 2, 3)
    assert decide(9, joined(0, is_busy=True)).add == (1, 2, 3)


def test_nodes_on_their_way_count() -> None:
    orders = decide(4, coming(0), coming(1))
    assert orders == NodeOrders(reason="2 nodes, 2 not joined yet; 4 slots wanted")


def test_nodes_that_leave_count_against_the_most_but_have_no_slots() -> None:
    nodes = [joined(0, is_busy=True), joined(1, is_busy=True), joined(2, is_busy=True)]
    leaving = replace(joined(3), made=replace(joined(3).made, is_leaving=True))
    orders = decide(8, *nodes, leaving)
    assert (orders.add, orders.reason) == ((), "3 nodes, 1 leaving; 8 slots wanted; max_nodes: 4")
    ending = replace(joined(3), num_slots=0)  # its time is up
    assert decide(8, *nodes, ending).add == ()
    assert decide(8, *nodes, over(3)).add == (4,)


def test_the_least_number_of_nodes_is_there_without_demand() -> None:
    spec = replace(SPEC, min_nodes=2)
    assert decide(0, spec=spec).add == (0, 1)
    assert decide(0, joined(0, quiet_s=1e6), joined(1, quiet_s=1e6), spec=spec).remove == ()


def test_idle_nodes_are_let_go_the_newest_first_as_long_as_the_others_suffice() -> None:
    nodes = [joined(number, quiet_s=700.0) for number in range(3)]
    assert decide(0, *nodes).remove == ("n2", "n1", "n0")
    orders = decide(3, *nodes)
    assert (orders.remove, orders.reason) == (("n2",), "releasing n2: idle for 700 s")
    assert decide(0, joined(0, quiet_s=599.0)).remove == ()
    assert decide(0, joined(0, quiet_s=700.0, is_busy=True)).remove == ()


def test_a_node_that_is_still_on_its_way_is_let_go_when_nobody_wants_it_any_more() -> None:
    assert decide(0, coming(0, since_s=700.0)).remove == ("n0",)
    assert decide(1, coming(0, since_s=700.0)).remove == ()


def test_a_lost_node_is_replaced() -> None:
    assert decide(2, over(0, is_lost=True)).add == (1,)


def test_a_silent_node_is_ended_and_replaced_at_once() -> None:
    silent = replace(joined(0), is_present=False, silent_since=NOW - LOST_S + 1)
    assert decide(2, silent).add == (1,)
    orders = decide(2, silent, now=NOW + 1)
    assert (orders.remove, orders.reason) == (("n0",), "ending n0: silent for 60 s")


def test_a_disabled_node_has_no_slots_for_anyone_and_is_let_go_when_it_is_idle() -> None:
    disabled = replace(joined(0, is_busy=True), is_disabled=True)
    assert decide(2, disabled).add == (1,)
    idle = replace(joined(0, quiet_s=700.0), is_disabled=True)
    assert decide(4, idle).remove == ("n0",)


def test_nodes_that_end_at_once_are_replaced_ever_more_slowly_and_the_reason_says_why() -> None:
    four = [over(number, lived_s=3.0, ended_s=4.0 - number) for number in range(4)]
    orders = decide(8, *four)
    told = "the last 4 nodes ended within 60 s: n3: no torch; the next node starts after a pause of 60 s"
    assert (orders.add, orders.reason) == ((), told)
    assert decide(8, *four, now=NOW + 60.0).add == (4,), "one, as a trial"
    many = [over(number, lived_s=3.0, ended_s=20.0 - number) for number in range(20)]
    assert decide(8, *many, now=NOW + 500.0).add == ()
    assert decide(8, *many, now=NOW + 700.0).add == (20,)


def test_fewer_nodes_than_before_may_be_allowed_by_the_file() -> None:
    nodes = [joined(0), joined(1, is_busy=True), joined(2, is_busy=True)]
    orders = decide(4, *nodes, spec=replace(SPEC, max_nodes=1))
    assert orders.remove == ("n0", "n2")
    assert orders.reason == "releasing n0, n2: more nodes than max_nodes"


def test_nodes_that_tell_their_own_slots_begin_with_one() -> None:
    spec = replace(SPEC, slots_per_node=0)
    assert decide(20, spec=spec).add == (0,)
    assert decide(20, coming(0), spec=spec).add == ()
    assert decide(20, joined(0, num_slots=8, is_busy=True), spec=spec).add == (1, 2)
    assert most_slots([], spec) == 0
    assert most_slots([joined(0, num_slots=8)], spec) == 32


def test_a_node_that_does_not_join_is_named() -> None:
    waiting = replace(coming(0, since_s=130.0))
    waiting = replace(waiting, made=replace(waiting.made, reason="n0: Unschedulable: no GPU"))
    assert decide(1, waiting).reason == "1 node, 1 not joined yet for 2 min: n0: Unschedulable: no GPU; 1 slot wanted"
