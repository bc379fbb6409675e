"""A pool's nodes as their platform and the coordinator see them, with what was seen before. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from everstep import wire
from everstep.platforms.fleet import FleetNode
from everstep.pool.decide_nodes import PoolNode
from everstep.wire.pool import ENABLED

Seen = Mapping[str, PoolNode]  # by name


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolSight:
    nodes: Seen
    num_wanted: int  # slots, of these nodes and new ones

    @classmethod
    def of(cls, made: Sequence[FleetNode], view: wire.PoolView, before: Seen, now: float) -> PoolSight:
        agents = {each.agent: each for each in view.agents}
        nodes = {each.name: _node(each, agents.get(each.name), before.get(each.name), now) for each in made}
        return cls(nodes=nodes, num_wanted=max(0, view.num_wanted - _num_elsewhere(view, nodes)))


def _num_elsewhere(view: wire.PoolView, nodes: Seen) -> int:
    """Slots of nodes that this process did not create."""
    others = [each for each in view.agents if each.agent not in nodes and each.is_present and each.state == ENABLED]
    return sum(len(each.slots) for each in others)


def _node(made: FleetNode, agent: wire.PoolAgentView | None, before: PoolNode | None, now: float) -> PoolNode:
    if before is not None and before.made.started_at != made.started_at:
        before = None  # another one of this name
    if agent is None:
        has_joined = before is not None and before.has_joined
        began_at = before.silent_since if before is not None and has_joined and not before.is_present else now
        quiet_since = before.quiet_since if before is not None else made.started_at
        return PoolNode(made=made, has_joined=has_joined, quiet_since=quiet_since, silent_since=began_at)
    is_busy = any(each.assignment for each in agent.slots)
    was_quiet = before is not None and before.has_joined and not before.is_busy
    was_silent = before is not None and before.has_joined and not before.is_present
    return PoolNode(
        made=made,
        num_slots=len(agent.slots),
        has_joined=True,
        is_present=agent.is_present,
        is_busy=is_busy,
        is_disabled=agent.state != ENABLED,
        quiet_since=before.quiet_since if before is not None and was_quiet and not is_busy else now,
        silent_since=before.silent_since if before is not None and was_silent else now,
    )
