"""What answers the operations about pools: see `handlers`."""

from __future__ import annotations

from everstep import wire
from everstep.coordinator.edge.handlers import HttpCall
from everstep.errors import UNKNOWN, Refused


async def pool(_call: HttpCall, pool: str) -> wire.PoolView:
    raise _unknown(pool)


async def report_pool(_call: HttpCall, pool: str, agent: str, message: wire.PoolReport) -> wire.PoolOrders:
    raise _unknown(pool)


async def pool_agent_leaves(_call: HttpCall, pool: str, agent: str, message: wire.AgentLeave) -> None:
    raise _unknown(pool)


def _unknown(pool: str) -> Refused:
    return Refused(f"there is no pool {pool}", status=UNKNOWN, code="pool-unknown")
