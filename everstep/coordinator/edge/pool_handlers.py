"""What answers the operations about pools: see `handlers`."""

from __future__ import annotations

from everstep import wire
from everstep.coordinator.edge.connection import WHEN_LOST
from everstep.coordinator.edge.handlers import HttpCall


async def pool(call: HttpCall, pool: str) -> wire.PoolView:
    return call.service.pool.view(pool)


async def report_pool(call: HttpCall, pool: str, agent: str, message: wire.PoolReport) -> wire.PoolOrders:
    """An agent's end is seen at once: the kernel closes its connection."""
    if WHEN_LOST in call.scope:
        call.scope[WHEN_LOST](lambda: call.service.pool.note_hang_up(pool, agent, message.incarnation))
    return await call.service.pool.report(pool, agent, message)


async def pool_agent_leaves(call: HttpCall, pool: str, agent: str, message: wire.AgentLeave) -> None:
    await call.service.pool.leave(pool, agent, message)
