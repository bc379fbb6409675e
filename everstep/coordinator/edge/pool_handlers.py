"""What answers the operations about pools: see `handlers`."""

from __future__ import annotations

from everstep import wire
from everstep.coordinator.edge.connection import WHEN_LOST
from everstep.coordinator.edge.handlers import HttpCall


async def pools(call: HttpCall) -> wire.PoolList:
    return wire.PoolList(pools=[call.service.pool_view(name) for name in call.service.pool.names])


async def pool(call: HttpCall, pool: str) -> wire.PoolView:
    return call.service.pool_view(pool)


async def queue(call: HttpCall, pool: str) -> wire.QueueView:
    return call.service.queue_view(pool)


async def change_agents(call: HttpCall, pool: str, message: wire.AgentsChange) -> wire.PoolView:
    await call.service.pool.change_agents(pool, message)
    return call.service.pool_view(pool)


async def report_nodes(call: HttpCall, pool: str, message: wire.PoolNodes) -> None:
    call.service.pool_nodes.note(pool, message)
    call.service.pool.note_dead(pool, message.dead)


async def pool_use(call: HttpCall, pool: str, *, days: int = 7) -> wire.PoolUse:
    return await call.service.uses.by_day(pool, days)


async def report_pool(call: HttpCall, pool: str, agent: str, message: wire.PoolReport) -> wire.PoolOrders:
    """An agent's end is seen at once: the kernel closes its connection."""
    if WHEN_LOST in call.scope:
        call.scope[WHEN_LOST](lambda: call.service.pool.note_hang_up(pool, agent, message.incarnation))
    return await call.service.pool.report(pool, agent, message)


async def pool_agent_leaves(call: HttpCall, pool: str, agent: str, message: wire.AgentLeave) -> None:
    await call.service.pool.leave(pool, agent, message)
