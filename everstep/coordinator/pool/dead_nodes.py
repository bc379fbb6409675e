"""Nodes whose platform says that all their processes have ended. What they ran is confirmed dead, so no trial waits
until its old workers must have stopped by themselves.

The platform knows a node by its name. An agent with that name that calls later is a different one, and stays. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from everstep.coordinator.pool.agents import KnownAgent

AgentKey = tuple[str, str]  # pool and agent


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeDeath:
    is_certain: bool
    reason: str


def decide_death(agent: KnownAgent, told_at: float) -> NodeDeath:
    """Whether the node is certainly dead. `told_at`: when the platform first said so."""
    if agent.is_dead:
        return NodeDeath(is_certain=False, reason=f"{agent.agent} is known to be dead")
    if agent.called_at > told_at:
        return NodeDeath(is_certain=False, reason=f"{agent.agent} has called since its platform said that it ended")
    if agent.is_heard and agent.hung_up_at is None:
        return NodeDeath(is_certain=False, reason=f"the connection of {agent.agent} is still open")
    return NodeDeath(is_certain=True, reason=f"{agent.agent} has ended, and all its processes with it")


@dataclass(slots=True, eq=False)
class DeadNodes:
    _told_at: dict[AgentKey, float] = field(default_factory=dict)

    def note(self, pool: str, names: Collection[str], now: float) -> None:
        """Record the nodes that have ended, according to the platform's latest report."""
        others = {key: at for key, at in self._told_at.items() if key[0] != pool}
        self._told_at = others | {(pool, name): self._told_at.get((pool, name), now) for name in names}

    def find(self, agents: Mapping[AgentKey, KnownAgent]) -> list[tuple[KnownAgent, str]]:
        """Those whose death is certain and was not known, with the reason."""
        found = [(agents[key], decide_death(agents[key], at)) for key, at in self._told_at.items() if key in agents]
        return [(agent, death.reason) for agent, death in found if death.is_certain]
