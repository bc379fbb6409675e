"""The pool's book: its agents, and who holds which slots, as it is now and as it was last stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection

from everstep.coordinator.pool.agent_states import KEPT_STATE_S
from everstep.coordinator.pool.agents import KnownAgent, agent_of, agent_row
from everstep.coordinator.pool.facts import Assignment
from everstep.coordinator.store.pool_rows import PoolStore
from everstep.coordinator.store.store import Store
from everstep.wire.pool import ENABLED

FORGET_S = 86_400.0  # a lost agent that may still run something is kept this long
HAS_LEFT = "left"  # the incarnation of an agent that has left, while it is not yet stored that it has lost all

AgentKey = tuple[str, str]  # pool and name


class PoolBook:
    """Changes are noted at once and stored by the next `save`."""

    def __init__(self, store: Store) -> None:
        self._rows = PoolStore(store)
        self.lost = self._rows.lost
        self.agents: dict[AgentKey, KnownAgent] = {}
        self.live: dict[int, Assignment] = {}  # as they are now …
        self.kept: dict[int, Assignment] = {}  # … and as they were last stored
        self.held: dict[tuple[int, int], set[int]] = {}  # live ones, by experiment and trial
        self.last_number = 0
        self._unsaved: dict[int, Assignment] = {}
        self._changed_agents: set[AgentKey] = set()
        self._gone_agents: set[AgentKey] = set()
        self._saving = asyncio.Lock()

    async def load(self, heard_at: float) -> None:
        """`heard_at`: when agents count as heard last."""
        found = await self._rows.load()
        self.last_number = found.last_number
        self.live = {each.number: each for each in found.live}
        self.kept = dict(self.live)
        for each in found.live:
            self.held.setdefault(each.key, set()).add(each.number)
        busy = self.busy()
        for row in found.agents:
            key = (row.pool, row.agent)
            kept_s = FORGET_S if row.state == ENABLED else KEPT_STATE_S
            if key not in busy and row.seen_at < time.time() - kept_s:
                self._gone_agents.add(key)
                continue
            self.agents[key] = agent_of(row, heard_at)
        for pool, name in busy - self.agents.keys():
            self.agents[pool, name] = KnownAgent(pool, name, HAS_LEFT, heard_at=heard_at)

    def held_by(self, experiment: int, trial: int) -> Collection[int]:
        """The numbers of the trial's live assignments."""
        return self.held.get((experiment, trial), ())

    def busy(self) -> set[AgentKey]:
        """Agents that hold something."""
        return {each.at for each in self.live.values()}

    # --- changes ----------------------------------------------------------------------------------

    def add_agent(self, agent: KnownAgent) -> None:
        self.agents[agent.at] = agent
        self._gone_agents.discard(agent.at)

    def note_changed(self, agent: KnownAgent) -> None:
        self._changed_agents.add(agent.at)

    def drop_agent(self, agent: KnownAgent) -> None:
        del self.agents[agent.at]
        self._gone_agents.add(agent.at)

    def put(self, assignment: Assignment) -> None:
        held = self.held.setdefault(assignment.key, set())
        if assignment.is_live:
            self.live[assignment.number] = assignment
            held.add(assignment.number)
        else:
            self.live.pop(assignment.number, None)
            held.discard(assignment.number)
        if not held:
            del self.held[assignment.key]
        self._unsaved[assignment.number] = assignment

    # --- storing ----------------------------------------------------------------------------------

    @property
    def has_unsaved_assignments(self) -> bool:
        return bool(self._unsaved)

    @property
    def is_stored(self) -> bool:
        """Nothing has changed that is not in the store."""
        return not (self._unsaved or self._changed_agents or self._gone_agents or self._saving.locked())

    async def save(self) -> None:
        """Return when all that has changed before this call is in the store, whichever call stored it: one save at a
        time, and what another failed to store is stored by this one."""
        async with self._saving:
            rows, self._unsaved = self._unsaved, {}
            keys, self._changed_agents = self._changed_agents, set()
            gone, self._gone_agents = self._gone_agents, set()
            if not (rows or keys or gone):
                return
            agents = [agent_row(self.agents[key]) for key in keys if key in self.agents]
            try:
                await self._rows.save(list(rows.values()), agents, gone)
            except BaseException:
                self._unsaved = rows | self._unsaved  # newer ones win
                self._changed_agents |= keys
                self._gone_agents |= gone - self.agents.keys()
                raise
            for number, row in rows.items():
                if row.is_live:
                    self.kept[number] = row
                else:
                    self.kept.pop(number, None)
