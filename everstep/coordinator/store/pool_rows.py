"""The rows of pools: assignments, whose numbers are never used again, and agents.

Blocking; knows nothing of decisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, delete, func, outerjoin, select

from everstep.coordinator.pool.agents import PoolAgentRow
from everstep.coordinator.pool.facts import LIVE, LOST, Assignment
from everstep.coordinator.store.store import Store
from everstep.coordinator.store.tables import ASSIGNMENTS, EXPERIMENTS, POOL_AGENTS
from everstep.storage.database import upsert


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolRows:
    """What a coordinator finds when it starts."""

    live: list[Assignment]
    agents: list[PoolAgentRow]
    last_number: int


class PoolStore:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def load(self) -> PoolRows:
        return await self._store.in_thread(lambda: self._store.read(_load))

    async def lost(self, pool: str, agent: str, up_to: int) -> list[Assignment]:
        """Those whose ends were never confirmed."""
        columns = ASSIGNMENTS.c
        wanted = select(ASSIGNMENTS).where(
            columns.pool == pool, columns.agent == agent, columns.state == LOST, columns.number <= up_to
        )

        def read(connection: Connection) -> list[Assignment]:
            return [Assignment(**row) for row in connection.execute(wanted).mappings()]

        return await self._store.in_thread(lambda: self._store.read(read))

    async def save(
        self,
        assignments: Sequence[Assignment],
        agents: Sequence[PoolAgentRow] = (),
        gone: Iterable[tuple[str, str]] = (),
    ) -> None:
        """`gone`: agents that have left, by pool and name."""

        def save(connection: Connection) -> None:
            upsert(connection, ASSIGNMENTS, [asdict(each) for each in assignments])
            for pool, agent in gone:
                is_it = (POOL_AGENTS.c.pool == pool) & (POOL_AGENTS.c.agent == agent)
                connection.execute(delete(POOL_AGENTS).where(is_it))
            upsert(connection, POOL_AGENTS, [asdict(each) for each in agents])

        await self._store.write(save)


def read_held(connection: Connection, pool: str, since: float) -> Iterable[tuple[str, float, float | None]]:
    """Owner, beginning and end of each time that a slot was held after `since`; no end: still held. The rows of deleted
    experiments stay."""
    columns, is_owned = ASSIGNMENTS.c, ASSIGNMENTS.c.experiment == EXPERIMENTS.c.number
    person = func.coalesce(EXPERIMENTS.c.owner, "")
    wanted = select(person, columns.began_at, columns.ended_at).select_from(
        outerjoin(ASSIGNMENTS, EXPERIMENTS, is_owned)
    )
    is_late = (columns.ended_at.is_(None)) | (columns.ended_at > since)
    for owner, began_at, ended_at in connection.execute(wanted.where(columns.pool == pool, is_late)):
        yield str(owner), float(began_at), ended_at


def _load(connection: Connection) -> PoolRows:
    live = select(ASSIGNMENTS).where(ASSIGNMENTS.c.state.in_(LIVE)).order_by(ASSIGNMENTS.c.number)
    agents = select(POOL_AGENTS).order_by(POOL_AGENTS.c.pool, POOL_AGENTS.c.agent)
    return PoolRows(
        live=[Assignment(**row) for row in connection.execute(live).mappings()],
        agents=[PoolAgentRow(**row) for row in connection.execute(agents).mappings()],
        last_number=connection.scalar(select(func.max(ASSIGNMENTS.c.number))) or 0,
    )
