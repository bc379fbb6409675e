"""Which agents of a pool may get work, as set by people, by name.

Draining: an agent's assignments leave after a step, and it gets no new ones. Disabled: they stay, and it gets no new
ones. An agent keeps its state when it leaves and is started again, so a node under repair stays out of work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from everstep import wire
from everstep.coordinator.pool.agents import KnownAgent
from everstep.errors import UNKNOWN, Refused
from everstep.wire.pool import ENABLED

KEPT_STATE_S = 30 * 86_400.0  # the state of an absent agent is kept for this long
_MOST_NAMED = 20  # in an error


def chosen(pool: str, agents: Iterable[KnownAgent], message: wire.AgentsChange) -> list[KnownAgent]:
    """The agents that the message names."""
    there = {each.agent: each for each in agents if each.pool == pool}
    if message.is_all:
        return list(there.values())
    if unknown := [name for name in message.agents if name not in there]:
        raise Refused(_unknown(pool, unknown[0], sorted(there)), status=UNKNOWN, code="pool-agent-unknown")
    return [there[name] for name in dict.fromkeys(message.agents)]


def _unknown(pool: str, name: str, there: Sequence[str]) -> str:
    more = f" and {len(there) - _MOST_NAMED} more" if len(there) > _MOST_NAMED else ""
    known = f"it has {', '.join(there[:_MOST_NAMED])}{more}" if there else "it has none"
    return f"pool {pool} has no node {name}; {known}"


def is_kept(agent: KnownAgent, now: float) -> bool:
    """Whether the state of an absent agent must be remembered."""
    return agent.state != ENABLED and now < agent.lost_at + KEPT_STATE_S
