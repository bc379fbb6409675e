"""Nodes as their platform and the coordinator see them."""

from __future__ import annotations

from collections.abc import Sequence

from everstep import wire
from everstep.platforms.fleet import FleetNode
from everstep.pool.leave_times import LeaveTimes, decide_leave
from everstep.pool.seen_nodes import PoolSight, Seen

NOW = 1000.0


def made(number: int = 0) -> FleetNode:
    return FleetNode(number=number, name=f"n{number}", started_at=NOW - 50)


def agent(name: str = "n0", *, assignment: int = 0, is_present: bool = True, num_slots: int = 2) -> wire.PoolAgentView:
    slots = [
        wire.SlotView(slot=slot, assignment=assignment if slot == 0 else 0, experiment=0, trial=0, since=0.0)
        for slot in range(num_slots)
    ]
    return wire.PoolAgentView(agent=name, kind="", is_present=is_present, slots=slots)


def see(agents: Sequence[wire.PoolAgentView], before: Seen, now: float = NOW, *, num_wanted: int = 0) -> PoolSight:
    slots = [slot for each in agents for slot in each.slots]
    view = wire.PoolView(
        pool="p", agents=list(agents), num_slots=len(slots), num_free=0, num_queued=0, num_wanted=num_wanted
    )
    return PoolSight.of([made()], view, before, now)


def test_a_node_is_quiet_since_its_start_then_since_it_has_joined_then_since_its_last_trial() -> None:
    coming = see([], {})
    assert (coming.nodes["n0"].is_coming, coming.nodes["n0"].quiet_since) == (True, NOW - 50)
    idle = see([agent()], coming.nodes, NOW + 1)
    assert (idle.nodes["n0"].num_slots, idle.nodes["n0"].quiet_since) == (2, NOW + 1)
    busy = see([agent(assignment=7)], idle.nodes, NOW + 2)
    assert busy.nodes["n0"].is_busy
    quiet = see([agent()], busy.nodes, NOW + 3)
    assert quiet.nodes["n0"].quiet_since == NOW + 3
    assert see([agent()], quiet.nodes, NOW + 9).nodes["n0"].quiet_since == NOW + 3


def test_a_silent_node_is_silent_since_it_was_last_heard() -> None:
    first = see([agent()], {})
    second = see([agent(is_present=False)], first.nodes, NOW + 5)
    assert see([agent(is_present=False)], second.nodes, NOW + 9).nodes["n0"].silent_since == NOW + 5
    assert see([], second.nodes, NOW + 9).nodes["n0"].silent_since == NOW + 5, "also if the coordinator forgets it"
    assert see([], first.nodes, NOW + 9).nodes["n0"].silent_since == NOW + 9


def test_slots_of_nodes_that_others_have_brought_need_no_nodes_of_ours() -> None:
    assert see([agent(), agent("by-hand", num_slots=3)], {}, num_wanted=7).num_wanted == 4


def test_when_an_agent_leaves_by_itself() -> None:
    times = LeaveTimes(until=NOW, patience_s=60.0)
    assert decide_leave(times, now=NOW - 1, silent_s=59.0) == ""
    assert decide_leave(times, now=NOW, silent_s=0.0) == "the node's time is up"
    assert decide_leave(times, now=NOW - 1, silent_s=60.0) == "the coordinator has been away for 60 s"
    assert decide_leave(LeaveTimes(), now=NOW, silent_s=1e9) == ""
