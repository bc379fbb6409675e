"""The pool at the coordinator: agents and their slots, and which trial has which.

Calls only note facts. One task settles what has ended, decides and keeps; replies are made from what was kept, so an
order is durable before it is sent. A slot is free again when its agent has confirmed the end, or is lost. An agent is
lost when it is silent for a lease by the coordinator's own clock, or when another incarnation takes its name.

After a restart, what runs continues: agents have time to report again before they count as lost."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace

from everstep import wire
from everstep.coordinator.clock import Now
from everstep.coordinator.experiments.seam import AssignmentEnd, Candidate, TrialSource
from everstep.coordinator.pool.agents import KILL, KnownAgent, view_of
from everstep.coordinator.pool.decisions import (
    ENDED,
    GIVEN,
    KILLING,
    LOST,
    PARKING,
    Assignment,
    Grant,
    decide_assignments,
    in_queue,
)
from everstep.coordinator.store.pool_rows import PoolAgentRow, PoolStore
from everstep.coordinator.store.store import Store
from everstep.coordinator.turns import Turns
from everstep.coordinator.vital_tasks import die_if_failed
from everstep.coordinator.waiters import Bell
from everstep.errors import Refused, TemporaryError
from everstep.retry import LONGEST_PAUSE_S

log = logging.getLogger(__name__)

DEFAULT_POOL = "default"  # the one whose slots trials get
LEASE_S = 10.0  # an agent that is silent for longer is lost
HUNG_UP_S = 2.0  # one whose call broke off has this long to call again
LONGEST_HOLD_S = 1.0
AGAIN_S = 0.5  # after a failure of the store
FORGET_S = 86_400.0  # agents that were not seen for this long are not listed any more
_TAKEN = 409


class Pool:
    """Implements SlotHolder. `load` it first, so that it knows who holds what, then `open` it with the trials."""

    def __init__(self, store: Store, *, now: Now, turns: Turns | None = None, lease_s: float = LEASE_S) -> None:
        self._rows, self._now, self._lease_s = PoolStore(store), now, lease_s
        self._bell = Bell(turns or Turns())
        self._agents: dict[tuple[str, str], KnownAgent] = {}
        self._live: dict[int, Assignment] = {}  # as they are …
        self._kept: dict[int, Assignment] = {}  # … and as they were kept last
        self._ends: dict[int, AssignmentEnd] = {}  # of live ones, to be settled
        self._ready: dict[int, wire.AssignmentOrder] = {}  # orders that may be sent: their jobs exist
        self._unsaved: dict[int, Assignment] = {}
        self._unsaved_agents: set[tuple[str, str]] = set()
        self._gone: set[tuple[str, str]] = set()
        self._dead: dict[tuple[str, str], int] = {}  # agents of which nothing is left up to an assignment's number
        self._last_number = 0
        self._look_at: float | None = None
        self._has_changed, self._is_open = asyncio.Event(), asyncio.Event()
        self._source: TrialSource | None = None
        self._task: asyncio.Task[None] | None = None

    def open(self, source: TrialSource) -> None:
        self._source = source
        self._is_open.set()
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(die_if_failed)

    async def close(self) -> None:
        self.let_go()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def let_go(self) -> None:
        """Answer the calls that are held: the coordinator stops."""
        self._bell.close()

    # --- for experiments --------------------------------------------------------------------------

    def holds(self, experiment: int, trial: int) -> int:
        return sum(each.key == (experiment, trial) for each in self._live.values())

    async def release(self, experiment: int, trial: int, how: str, reason: str) -> None:
        """Return when it is durable that the trial's slots shall be given back; they are so later."""
        state = KILLING if how == KILL else PARKING
        for each in [each for each in self._live.values() if each.key == (experiment, trial)]:
            if each.state == GIVEN or (each.state == PARKING and state == KILLING):
                self._put(replace(each, state=state, reason=reason))
        await self._save()
        self._ring()
        self.note_change()

    def note_change(self) -> None:
        self._has_changed.set()

    # --- for agents -------------------------------------------------------------------------------

    async def report(self, pool: str, name: str, message: wire.PoolReport) -> wire.PoolOrders:
        await self._is_open.wait()
        agent = self._greet(pool, name, message)
        agent.number_after(message.seen)
        orders = agent.orders(self._kept, self._ready, self._ends)
        if orders.number == message.seen:
            await self._bell.wait(min(message.wait_s, LONGEST_HOLD_S), agent.group)
            orders = agent.orders(self._kept, self._ready, self._ends)
        return orders

    def note_hang_up(self, pool: str, name: str, incarnation: str) -> None:
        """An agent broke off a call that was held: it ended, or calls again at once."""
        agent = self._agents.get((pool, name))
        if agent is not None and agent.incarnation == incarnation:
            agent.hung_up_at = self._now()
            self.note_change()

    async def leave(self, pool: str, name: str, message: wire.AgentLeave) -> None:
        """Nothing runs there any more."""
        await self._is_open.wait()
        agent = self._agents.get((pool, name))
        if agent is None or agent.incarnation != message.incarnation:
            return
        del self._agents[pool, name]
        self._gone.add((pool, name))
        self._dead[pool, name] = self._last_number
        self._lose(agent, f"{name} has left: {message.reason}")
        self.note_change()

    def view(self, pool: str) -> wire.PoolView:
        agents = [each for each in self._agents.values() if each.pool == pool]
        live = list(self._live.values())
        queued = in_queue(self._candidates(), live) if pool == DEFAULT_POOL else []
        return view_of(pool, agents, live, num_queued=len(queued))

    def _greet(self, pool: str, name: str, message: wire.PoolReport) -> KnownAgent:
        agent = self._agents.get((pool, name))
        if agent is None:
            agent = self._agents[pool, name] = KnownAgent(pool, name)
            self._gone.discard((pool, name))
        if message.incarnation in agent.past:
            raise Refused(
                f"another agent has joined pool {pool} as {name}", status=_TAKEN, code="pool-agent-superseded"
            )
        if agent.incarnation and message.incarnation != agent.incarnation:
            agent.past.add(agent.incarnation)
            self._lose(agent, f"{name} was started again")
        facts = (message.incarnation, message.num_slots, message.kind)
        if facts != (agent.incarnation, agent.num_slots, agent.kind):
            agent.incarnation, agent.num_slots, agent.kind = facts
            self._unsaved_agents.add((pool, name))
        if not agent.is_heard or agent.has_ended_strays(message.assignments, self._live):
            self._dead[pool, name] = self._last_number
        is_news = not agent.is_heard or agent.reported.keys() != {each.number for each in message.assignments}
        agent.heard_at, agent.is_heard, agent.is_lost, agent.hung_up_at = self._now(), True, False, None
        agent.reported = {each.number: each for each in message.assignments}
        self._tell_kinds()
        for state in message.assignments:
            is_news = self._note_end(agent, state) or is_news
        if is_news:
            self.note_change()
        return agent

    def _tell_kinds(self) -> None:
        there = [each for each in self._agents.values() if each.pool == DEFAULT_POOL and each.is_heard]
        self._trials.note_kinds(frozenset(each.kind for each in there))

    def _note_end(self, agent: KnownAgent, state: wire.AssignmentState) -> bool:
        given = self._live.get(state.number)
        if state.state != "ended" or given is None or given.agent != agent.agent or state.number in self._ends:
            return False
        self._ends[state.number] = AssignmentEnd(
            exit_code=state.exit_code, was_asked=state.was_asked, is_lost=False, reason=state.reason
        )
        return True

    def _lose(self, agent: KnownAgent, reason: str) -> None:
        """All that it had. If it comes back, it must end all of that before it gets anything else."""
        agent.is_heard, agent.is_lost = False, True
        agent.reported = {}
        for each in self._live.values():
            if (each.pool, each.agent) == (agent.pool, agent.agent) and each.number not in self._ends:
                self._ends[each.number] = AssignmentEnd(exit_code=0, was_asked=False, is_lost=True, reason=reason)
        log.info("pool %s: agent %s is lost: %s", agent.pool, agent.agent, reason)

    # --- the task that decides --------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._wait()
            try:
                await self._advance()
            except TemporaryError as error:  # of the store: nothing was promised yet
                log.warning("pool: trying again: %s", error)
                self.note_change()
                await asyncio.sleep(AGAIN_S)

    async def load(self) -> None:
        found = await self._rows.load()
        self._last_number = found.last_number
        self._live = {each.number: each for each in found.live}
        self._kept = dict(self._live)
        busy = {(each.pool, each.agent) for each in found.live}
        heard_at = self._now() + LONGEST_PAUSE_S  # clients pause this long between two tries
        for row in found.agents:
            key = (row.pool, row.agent)
            if key not in busy and row.seen_at < time.time() - FORGET_S:
                self._gone.add(key)
                continue
            agent = KnownAgent(row.pool, row.agent, row.incarnation, row.num_slots, row.kind, heard_at)
            self._agents[key] = agent
        for pool, name in busy - self._agents.keys():
            self._agents[pool, name] = KnownAgent(pool, name, heard_at=heard_at)
        self.note_change()

    async def _wait(self) -> None:
        deadlines = [self._silent_at(each) for each in self._agents.values() if not each.is_lost]
        if self._look_at is not None:
            deadlines.append(self._look_at)
        # Not by wait_for, which may swallow a cancellation.
        delay_s = max(0.001, min(deadlines) - self._now()) if deadlines else LONGEST_HOLD_S
        timer = asyncio.get_running_loop().call_later(delay_s, self._has_changed.set)
        try:
            await self._has_changed.wait()
        finally:
            timer.cancel()
        self._has_changed.clear()

    def _silent_at(self, agent: KnownAgent) -> float:
        silent_at = agent.heard_at + self._lease_s
        return silent_at if agent.hung_up_at is None else min(silent_at, agent.hung_up_at + HUNG_UP_S)

    async def _advance(self) -> None:
        now = self._now()
        for agent in list(self._agents.values()):
            if not agent.is_lost and self._silent_at(agent) <= now:
                why = "it hung up" if agent.hung_up_at is not None else f"silent for {self._lease_s:g} s"
                self._unsaved_agents.add((agent.pool, agent.agent))
                self._lose(agent, why)
        await self._save()
        self._tell_kinds()
        await self._settle()
        await self._bury()
        await self._prepare()
        await self._decide()
        self._ring()

    async def _settle(self) -> None:
        """The experiment first: a repeated end changes nothing, a missing one would be forgotten."""
        for number, end in list(self._ends.items()):
            given = self._live[number]
            await self._trials.vacated(given.experiment, given.trial, number, end)
            state = LOST if end.is_lost else ENDED
            self._put(replace(self._live[number], state=state, reason=end.reason, ended_at=time.time()))
            self._ready.pop(number, None)
            del self._ends[number]
        await self._save()

    async def _bury(self) -> None:
        """Assignments lost with an agent are dead once it is heard again without them, or has left."""
        for key, up_to in list(self._dead.items()):
            agent = self._agents.get(key)
            for each in await self._rows.lost(*key, up_to):
                if agent is None or not agent.runs(each.number):
                    await self._trials.buried(each.experiment, each.trial, each.number)
            del self._dead[key]

    async def _prepare(self) -> None:
        """Orders that were kept, and that no agent knows of: the coordinator died before they were sent."""
        reported = {number for agent in self._agents.values() for number in agent.reported}
        wanted = [each for each in self._live.values() if each.number not in self._ready.keys() | reported]
        heard = {(agent.pool, agent.agent) for agent in self._agents.values() if agent.is_heard}
        candidates = {(each.experiment, each.trial): each for each in self._candidates()}
        for given in [each for each in wanted if each.state == GIVEN and (each.pool, each.agent) in heard]:
            if (candidate := candidates.get(given.key)) is not None:
                await self._make_ready(candidate, given)
            else:
                reason = "the trial did not want it any more"
                self._ends[given.number] = AssignmentEnd(exit_code=0, was_asked=True, is_lost=True, reason=reason)
                self.note_change()

    async def _decide(self) -> None:
        agents = [each.slots(self._kept) for each in self._agents.values() if each.pool == DEFAULT_POOL]
        decision = decide_assignments(self._candidates(), agents, self._live.values(), self._now())
        self._look_at = decision.look_at
        for parking in decision.park:
            parked = replace(self._live[parking.number], state=PARKING, reason=parking.reason)
            self._put(parked)
            self._trials.note_parking(parked.experiment, parked.trial)
        given = [(each.candidate, self._give(each)) for each in decision.give]
        if not (decision.park or given):
            return
        await self._save()
        for candidate, assignment in given:
            await self._make_ready(candidate, assignment)

    def _give(self, grant: Grant) -> Assignment:
        self._last_number += 1
        candidate = grant.candidate
        assignment = Assignment(
            number=self._last_number,
            pool=DEFAULT_POOL,
            agent=grant.agent,
            slot=grant.slot,
            experiment=candidate.experiment,
            trial=candidate.trial,
            state=GIVEN,
            reason=grant.reason,
            began_at=time.time(),
        )
        self._put(assignment)
        return assignment

    async def _make_ready(self, candidate: Candidate, given: Assignment) -> None:
        agent = self._agents.get((given.pool, given.agent))
        await self._trials.placed(candidate, given.number, agent.kind if agent is not None else "")
        order = self._trials.order(candidate)
        self._ready[given.number] = replace(order, number=given.number, slot=given.slot)

    # --- keeping ----------------------------------------------------------------------------------

    @property
    def _trials(self) -> TrialSource:
        assert self._source is not None
        return self._source

    def _candidates(self) -> list[Candidate]:
        return list(self._source.candidates()) if self._source is not None else []

    def _put(self, assignment: Assignment) -> None:
        if assignment.is_live:
            self._live[assignment.number] = assignment
        else:
            self._live.pop(assignment.number, None)
        self._unsaved[assignment.number] = assignment

    async def _save(self) -> None:
        """The store keeps in the order of these calls, so each row is as new as its last one."""
        rows, self._unsaved = self._unsaved, {}
        keys, self._unsaved_agents = self._unsaved_agents, set()
        gone, self._gone = self._gone, set()
        if not (rows or keys or gone):
            return
        agents = [_row(self._agents[key]) for key in keys if key in self._agents]
        try:
            await self._rows.save(list(rows.values()), agents, gone)
        except BaseException:
            self._unsaved = rows | self._unsaved
            self._unsaved_agents |= keys
            self._gone |= gone - self._agents.keys()
            raise
        for number, row in rows.items():
            if row.is_live:
                self._kept[number] = row
            else:
                self._kept.pop(number, None)

    def _ring(self) -> None:
        """Answer the agents whose orders have changed."""
        for agent in self._agents.values():
            before = agent.orders_number
            if agent.orders(self._kept, self._ready, self._ends).number != before:
                self._bell.ring_for(agent.group)


def _row(agent: KnownAgent) -> PoolAgentRow:
    return PoolAgentRow(
        pool=agent.pool,
        agent=agent.agent,
        incarnation=agent.incarnation,
        num_slots=agent.num_slots,
        kind=agent.kind,
        seen_at=time.time(),
    )
