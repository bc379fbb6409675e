"""The pool at the coordinator: agents and their slots, and which trial has which.

Calls only record facts. One task settles what has ended, decides, and stores; replies contain only what is stored, so
an order is durable before it is sent. A slot is free again when its agent has confirmed the end, or is lost. An agent
is lost when it is silent for a lease by the coordinator's own clock, or when another incarnation takes its name.

After a restart, running trials continue: agents have time to report again before they count as lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from everstep import wire
from everstep.coordinator.clock import Now
from everstep.coordinator.experiments.seam import AssignmentEnd, Candidate, TrialSource
from everstep.coordinator.pool.agent_states import chosen, is_kept
from everstep.coordinator.pool.agents import KnownAgent, LeftAgents, view_of
from everstep.coordinator.pool.book import FORGET_S, AgentKey, PoolBook
from everstep.coordinator.pool.dead_nodes import DeadNodes
from everstep.coordinator.pool.decider import PoolDecider
from everstep.coordinator.pool.facts import (
    ENDED,
    GIVEN,
    KILLING,
    LOST,
    PARKING,
    Assignment,
    Grant,
    PoolDecision,
    TrialKey,
)
from everstep.coordinator.pool.order import in_queue
from everstep.coordinator.pool.people import NOBODY, People
from everstep.coordinator.pool.queue_view import PoolStanding
from everstep.coordinator.store.store import Store
from everstep.coordinator.turns import Turns
from everstep.coordinator.vital_tasks import die_if_failed
from everstep.coordinator.waiters import Bell
from everstep.errors import Refused, TemporaryError
from everstep.retry import LONGEST_PAUSE_S
from everstep.wire.pool import DEFAULT_POOL, DISABLED, ENABLED, MAX_REASON, MOST_POOL_SLOTS

log = logging.getLogger(__name__)

LEASE_S = 10.0  # an agent that is silent for longer is lost
HUNG_UP_S = 2.0  # an agent whose call broke off has this long to call again
LONGEST_HOLD_S = 1.0
MEASURE_S = 1.0  # between two looks at how trials train
BRIEF_S = 0.001
RESTS, LONGEST_REST_S = 4, 0.1  # after a decision, in times of what it took
AGAIN_S = 0.5  # after a failure of the store
GONE_S = 3600.0  # a lost agent is listed for this long, and until all that it ran is confirmed dead, or for FORGET_S
_TAKEN = 409


def decide_rest(took_s: float) -> float:
    """How long to serve only calls after this much processor time of decisions and of the calls in between."""
    return 0.0 if took_s <= BRIEF_S else min(RESTS * took_s, LONGEST_REST_S)


class Pool:
    """Implements SlotHolder. `load` it first, so that it knows who holds what, then `open` it with the trials."""

    def __init__(
        self,
        store: Store,
        *,
        now: Now,
        turns: Turns | None = None,
        lease_s: float = LEASE_S,
        people: People = NOBODY,
        most_slots: Callable[[str], int] = lambda pool: 0,
    ) -> None:
        """`most_slots`: that a pool can ever have beyond its present nodes; 0: unknown."""
        self._book, self.now, self._lease_s = PoolBook(store), now, lease_s
        self._bell = Bell(turns or Turns())
        self._ends: dict[int, AssignmentEnd] = {}  # of live ones, to be settled
        self._ready: dict[int, wire.AssignmentOrder] = {}  # orders that may be sent: their jobs exist
        self._left, self._dead_nodes = LeftAgents(), DeadNodes()
        self._dead: dict[AgentKey, int] = {}  # agents that run nothing up to this assignment's number
        self.decider = PoolDecider(people, most_slots)
        self._has_changed, self._is_open = asyncio.Event(), asyncio.Event()
        self._source: TrialSource | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def open(self, source: TrialSource) -> None:
        self._source = source
        self._is_open.set()
        self._tasks = [asyncio.create_task(duty()) for duty in (self._run, self._measure_on)]
        for each in self._tasks:
            each.add_done_callback(die_if_failed)

    async def close(self) -> None:
        self.let_go()
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def let_go(self) -> None:
        """Answer the held calls: the coordinator is stopping."""
        self._bell.close()

    # --- for experiments --------------------------------------------------------------------------

    def holds(self, experiment: int, trial: int) -> int:
        return len(self._book.held_by(experiment, trial))

    def is_shrinking(self, experiment: int, trial: int) -> bool:
        return any(self._book.live[number].state != GIVEN for number in self._book.held_by(experiment, trial))

    def why_queued(self, experiment: int, trial: int) -> str:
        return self.decider.why_queued.get((experiment, trial), "")

    def why_never(self, candidate: Candidate) -> str | None:
        return self.decider.why_never(candidate, self._book.agents.values(), self._book.kept, self.now())

    async def release(self, experiment: int, trial: int, how: str, reason: str) -> None:
        """Return when the order to release the trial's slots is durable; the release follows later."""
        state = KILLING if how == wire.KILL else PARKING
        for number in sorted(self._book.held_by(experiment, trial)):
            self._end(number, state, reason)
        await self._book.save()
        self._ring()
        self.note_change()

    def _end(self, number: int, state: str, reason: str) -> None:
        given = self._book.live[number]
        if given.state == GIVEN or (given.state == PARKING and state == KILLING):
            self._book.put(replace(given, state=state, reason=reason))

    def note_change(self) -> None:
        self._has_changed.set()

    # --- for people -------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The names of the pools that have nodes, or trials that wait for some."""
        wanted = {each.pool for each in self._candidates()}
        return sorted({DEFAULT_POOL, *(each.pool for each in self._book.agents.values()), *wanted})

    def view(self, pool: str) -> wire.PoolView:
        agents = [each for each in self._book.agents.values() if each.pool == pool]
        live = list(self._book.live.values())
        queued = in_queue([each for each in self._candidates() if each.pool == pool], live)
        return view_of(pool, agents, live, num_queued=len(queued), num_wanted=self.decider.num_wanted(pool))

    def held(self) -> Counter[TrialKey]:
        """The slots that trials hold, by experiment and trial."""
        return Counter(each.key for each in self._book.live.values())

    def standing(self, pool: str) -> PoolStanding:
        candidates = [each for each in self._candidates() if each.pool == pool]
        held = Counter(each.key for each in self._book.live.values() if each.pool == pool)
        return PoolStanding(
            candidates=candidates, held=held, queue=self.decider.queue(pool), shares=self.decider.shares(pool)
        )

    # --- for agents -------------------------------------------------------------------------------

    async def report(self, pool: str, name: str, message: wire.PoolReport) -> wire.PoolOrders:
        await self._is_open.wait()
        agent = self._greet(pool, name, message)
        agent.number_after(message.seen)
        orders = agent.orders(self._book.kept, self._ready, self._ends)
        if orders.number == message.seen:
            await self._bell.wait(min(message.wait_s, LONGEST_HOLD_S), agent.group)
            orders = agent.orders(self._book.kept, self._ready, self._ends)
        return orders

    def note_hang_up(self, pool: str, name: str, incarnation: str) -> None:
        """An agent broke off a held call: either it has ended, or it calls again at once."""
        agent = self._book.agents.get((pool, name))
        if agent is not None and agent.incarnation == incarnation:
            agent.hung_up_at = self.now()
            self.note_change()

    def note_dead(self, pool: str, names: Collection[str]) -> None:
        """Of these nodes no process is left, as their platform says."""
        self._dead_nodes.note(pool, names, self.now())
        self.note_change()

    async def leave(self, pool: str, name: str, message: wire.AgentLeave) -> None:
        """An agent leaves: nothing runs there any more."""
        await self._is_open.wait()
        agent = self._book.agents.get((pool, name))
        if agent is None or agent.incarnation != message.incarnation:
            return
        if agent.state == ENABLED:
            self._book.drop_agent(agent)
        else:  # keep its state
            self._book.note_changed(agent)
        self._left.add(pool, name, message.incarnation)
        self._dead[pool, name] = self._book.last_number
        self._lose(agent, f"{name} has left: {message.reason}")
        self.note_change()

    async def change_agents(self, pool: str, message: wire.AgentsChange) -> None:
        """Return when the new states are durable."""
        await self._is_open.wait()
        for agent in chosen(pool, self._book.agents.values(), message):
            if agent.set_state(message.state, message.reason):
                log.info("pool %s: agent %s is %s: %s", pool, agent.agent, message.state, message.reason)
                self._book.note_changed(agent)
        await self._book.save()
        self._ring()
        self.note_change()

    def _greet(self, pool: str, name: str, message: wire.PoolReport) -> KnownAgent:
        if (pool, name, message.incarnation) in self._left:
            raise Refused(f"agent {name} has left pool {pool}", status=_TAKEN, code="pool-agent-left")
        agent = self._book.agents.get((pool, name))
        if agent is None or not agent.is_heard or message.num_slots > agent.num_slots:
            self._check_slots(pool, name, message.num_slots)
        if agent is None:
            agent = KnownAgent(pool, name)
            self._book.add_agent(agent)
        if message.incarnation in agent.past:
            raise Refused(
                f"another agent has joined pool {pool} as {name}", status=_TAKEN, code="pool-agent-superseded"
            )
        if agent.incarnation and message.incarnation != agent.incarnation:
            agent.past.add(agent.incarnation)
            agent.replaced = agent.replaced or agent.incarnation
            self._lose(agent, f"{name} was restarted")
        facts = (message.incarnation, message.num_slots, message.kind)
        if is_other := facts != (agent.incarnation, agent.num_slots, agent.kind):
            agent.incarnation, agent.num_slots, agent.kind = facts
            self._book.note_changed(agent)
        if not agent.is_heard or agent.has_ended_strays(message.assignments, self._book.live):
            self._dead[pool, name] = self._book.last_number
        is_news = (
            is_other or not agent.is_heard or agent.reported.keys() != {each.number for each in message.assignments}
        )
        agent.heard_at = agent.called_at = self.now()
        agent.is_heard, agent.is_lost, agent.is_dead, agent.hung_up_at = True, False, False, None
        agent.reported = {each.number: each for each in message.assignments}
        agent.environment, agent.leaves_at = message.environment, message.leaves_at
        agent.over = tuple(self._trials.ended(message.parked)) if message.parked else ()
        self._tell_kinds()
        for state in message.assignments:
            is_news = self._note_end(agent, state) or is_news
        if is_news:
            self.note_change()
        return agent

    def _check_slots(self, pool: str, name: str, num_slots: int) -> None:
        present = [
            each for each in self._book.agents.values() if each.pool == pool and each.is_heard and each.agent != name
        ]
        there = sum(each.num_slots for each in present)
        if there + num_slots > MOST_POOL_SLOTS:
            raise Refused(
                f"pool {pool} has {there} slots on {len(present)} nodes, and {name} offers {num_slots} more: "
                f"a pool has at most {MOST_POOL_SLOTS}; join another one: everstep pool join POOL",
                status=_TAKEN,
                code="pool-full",
            )

    def _tell_kinds(self) -> None:
        kinds = defaultdict[str, set[str]](set)
        for each in self._book.agents.values():
            if each.is_heard:
                kinds[each.pool].add(each.kind)
        self._trials.note_kinds({pool: frozenset(found) for pool, found in kinds.items()})

    def _note_end(self, agent: KnownAgent, state: wire.AssignmentState) -> bool:
        given = self._book.live.get(state.number)
        if state.state != "ended" or given is None or given.agent != agent.agent or state.number in self._ends:
            return False
        self._ends[state.number] = AssignmentEnd(
            exit_code=state.exit_code, was_asked=state.was_asked, is_lost=False, reason=state.reason
        )
        return True

    def _lose(self, agent: KnownAgent, reason: str) -> None:
        """Give up an agent with all its assignments. If it comes back, it must end all of these before it gets more."""
        agent.is_heard, agent.is_lost, agent.lost_at = False, True, self.now()
        agent.forget_at = agent.lost_at + GONE_S
        agent.reported = {}
        for each in self._book.live.values():
            if each.at == agent.at and each.number not in self._ends:
                self._ends[each.number] = AssignmentEnd(exit_code=0, was_asked=False, is_lost=True, reason=reason)
        log.info("pool %s: agent %s is lost: %s", agent.pool, agent.agent, reason)

    def images(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for each in self._book.agents.values():
            if each.is_heard:
                found.setdefault(each.pool, set()).add(each.environment.image)
        return found

    # --- the task that decides --------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._wait()
            began = time.thread_time()
            try:
                await self._advance()
            except TemporaryError as error:  # of the store: nothing was sent yet
                log.warning("pool: decision failed; trying again: %s", error)
                self.note_change()
                await asyncio.sleep(AGAIN_S)
            # All that happens meanwhile is one decision: with thousands of slots, calls have most of the time.
            await asyncio.sleep(decide_rest(time.thread_time() - began))

    async def load(self) -> None:
        await self._book.load(heard_at=self.now() + LONGEST_PAUSE_S)  # clients pause this long between two tries
        self.note_change()

    async def _wait(self) -> None:
        deadlines = [self._silent_at(each) for each in self._book.agents.values() if not each.is_lost]
        if self.decider.look_at is not None:
            deadlines.append(self.decider.look_at)
        # Not wait_for, which may swallow a cancellation.
        delay_s = max(0.001, min(deadlines) - self.now()) if deadlines else LONGEST_HOLD_S
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
        now = self.now()
        self._note_deaths()
        for agent in list(self._book.agents.values()):
            if not agent.is_lost and self._silent_at(agent) <= now:
                why = (
                    f"{agent.agent} closed its connection and did not call again"
                    if agent.hung_up_at is not None
                    else f"{agent.agent} was silent for {self._lease_s:g} s"
                )
                self._book.note_changed(agent)
                self._lose(agent, why)
        await self._book.save()
        self._tell_kinds()
        await self._settle()
        await self._bury()
        await self._forget()
        await self._prepare()
        await self._decide()
        self._ring()

    def _note_deaths(self) -> None:
        for agent, reason in self._dead_nodes.find(self._book.agents):
            if not agent.is_lost:
                self._book.note_changed(agent)
                self._lose(agent, reason)
            agent.is_dead = True
            self._dead[agent.at] = self._book.last_number

    async def _settle(self) -> None:
        """Tell the experiment first: a repeated end changes nothing, but a missing one would be lost."""
        for number, end in list(self._ends.items()):
            given = self._book.live[number]
            others = sorted(self._book.held[given.key] - {number})
            await self._trials.vacated(given.experiment, given.trial, number, end, others)
            state = LOST if end.is_lost else ENDED
            self._book.put(replace(self._book.live[number], state=state, reason=end.reason, ended_at=time.time()))
            self._ready.pop(number, None)
            del self._ends[number]
            self._set_aside(given, end)
        self._note_replaced()
        await self._book.save()

    def _note_replaced(self) -> None:
        """Store a new incarnation together with the ends of what the one before had, lost or ended in time. If the new
        one were stored earlier, a coordinator that starts then would take all of this for the new one's."""
        ending = {self._book.live[number].at for number in self._ends}
        for key, agent in self._book.agents.items():
            if agent.replaced and key not in ending:
                agent.replaced = ""
                self._book.note_changed(agent)

    def _set_aside(self, given: Assignment, end: AssignmentEnd) -> None:
        """A node on which trials of several experiments fail."""
        agent = self._book.agents.get(given.at)
        if agent is None:
            return
        elsewhere = {number for each in self._book.agents.values() if each is not agent for number in each.failed}
        if reason := agent.note_end(given, end, elsewhere):
            log.warning("pool %s: agent %s is set aside: %s", given.pool, given.agent, reason)
            agent.set_state(DISABLED, reason[:MAX_REASON])
            self._book.note_changed(agent)

    async def _bury(self) -> None:
        """Once a lost agent reports again without its assignments, or leaves, they are confirmed dead."""
        for key, up_to in list(self._dead.items()):
            agent = self._book.agents.get(key)
            for each in await self._book.lost(*key, up_to):
                if agent is None or not agent.runs(each.number):
                    await self._trials.buried(each.experiment, each.trial, each.number)
                    self._book.put(replace(each, state=ENDED))  # not again
            del self._dead[key]

    async def _forget(self) -> None:
        """Lost agents that are unlikely to come back; one that does is greeted like a new one."""
        now = self.now()
        for key, agent in list(self._book.agents.items()):
            if not agent.is_lost or agent.forget_at > now:
                continue
            may_run = await self._book.lost(*key, self._book.last_number) or key in self._book.busy()
            if (may_run and now < agent.lost_at + FORGET_S) or is_kept(agent, now):
                agent.forget_at = now + GONE_S
            elif agent.is_lost:  # still
                self._book.drop_agent(agent)
        await self._book.save()

    async def _prepare(self) -> None:
        """Prepare stored orders that no agent knows, because the coordinator died before they were sent."""
        reported = {number for agent in self._book.agents.values() for number in agent.reported}
        known = self._ready.keys() | self._ends.keys() | reported
        wanted = [each for each in self._book.live.values() if each.number not in known]
        heard = {agent.at for agent in self._book.agents.values() if agent.is_heard}
        if not (unsent := [each for each in wanted if each.state == GIVEN and each.at in heard]):
            return
        candidates = {(each.experiment, each.trial): each for each in self._candidates()}
        for given in unsent:
            if (candidate := candidates.get(given.key)) is not None:
                await self._make_ready(candidate, given)
            else:
                self._take_back(given)

    async def _decide(self) -> None:
        candidates, now = self._candidates(), self.now()
        self._move_out(candidates)
        decisions = self.decider.decide(candidates, self._book.agents.values(), self._book.kept, self._book.live, now)
        for decision in decisions.values():
            self._carry_out_releases(decision, now)
        given = [
            (each.candidate, self._give(pool, each)) for pool, decision in decisions.items() for each in decision.give
        ]
        if not self._book.has_unsaved_assignments:
            return
        await self._book.save()
        for candidate, assignment in given:
            await self._make_ready(candidate, assignment)

    def _move_out(self, candidates: Iterable[Candidate]) -> None:
        """Release the slots of experiments that have moved to another pool."""
        wanted = {(each.experiment, each.trial): each.pool for each in candidates}
        for each in list(self._book.live.values()):
            pool = wanted.get(each.key, each.pool)
            if each.state == GIVEN and each.pool != pool:
                self._end(each.number, PARKING, f"its experiment has moved to pool {pool}")
                self._trials.note_parking(*each.key)

    def _carry_out_releases(self, decision: PoolDecision, now: float) -> None:
        for impossible in decision.impossible:
            self._trials.refuse(impossible.experiment, impossible.reason)
        for release in decision.release:
            self._end(release.number, KILLING if release.how == wire.KILL else PARKING, release.reason)
        for key in {self._book.live[release.number].key for release in decision.release}:
            self.decider.memory.note_shrunk(key, now)
            is_whole = all(self._book.live[number].state != GIVEN for number in self._book.held[key])
            (self._trials.note_parking if is_whole else self._trials.note_shrinking)(*key)

    def _give(self, pool: str, grant: Grant) -> Assignment:
        self._book.last_number += 1
        candidate = grant.candidate
        assignment = Assignment(
            number=self._book.last_number,
            pool=pool,
            agent=grant.agent,
            slot=grant.slot,
            experiment=candidate.experiment,
            trial=candidate.trial,
            state=GIVEN,
            reason=grant.reason,
            began_at=time.time(),
        )
        self.decider.memory.note_given(assignment, self.now(), is_growth=assignment.key in self._book.held)
        self._book.put(assignment)
        return assignment

    async def _make_ready(self, candidate: Candidate, given: Assignment) -> None:
        agent = self._book.agents.get(given.at)
        kind = agent.kind if agent is not None else ""
        is_first = not any(self._may_run(self._book.live[each]) for each in self._book.held[given.key] - {given.number})
        if not await self._trials.placed(candidate, given.number, kind, is_first=is_first):
            self._take_back(given)
            return
        order = self._trials.order(candidate)
        self._ready[given.number] = replace(order, number=given.number, slot=given.slot)

    def _may_run(self, given: Assignment) -> bool:
        """Whether the assignment may be running: it is not if its order was never sent."""
        agent = self._book.agents.get(given.at)
        is_sent = given.number in self._ready or (agent is not None and given.number in agent.reported)
        return is_sent or agent is None or not agent.is_heard

    def _take_back(self, given: Assignment) -> None:
        """Take back an assignment that was never sent to its agent."""
        reason = "the trial no longer wants the slot"
        self._ends[given.number] = AssignmentEnd(exit_code=0, was_asked=True, is_lost=True, reason=reason)
        self.note_change()

    async def _measure_on(self) -> None:
        while True:
            await asyncio.sleep(MEASURE_S)
            if self._book.held and self.decider.measure(self._book.held, self._book.live, self._trials.progress):
                self.note_change()

    # --- its trials -------------------------------------------------------------------------------

    @property
    def _trials(self) -> TrialSource:
        assert self._source is not None
        return self._source

    def _candidates(self) -> list[Candidate]:
        return list(self._source.candidates()) if self._source is not None else []

    def _ring(self) -> None:
        """Answer the agents whose orders have changed."""
        mine: dict[AgentKey, dict[int, Assignment]] = defaultdict(dict)
        for number, each in self._book.kept.items():
            mine[each.at][number] = each
        for key, agent in self._book.agents.items():
            before = agent.orders_number
            if agent.orders(mine[key], self._ready, self._ends).number != before:
                self._bell.ring_for(agent.group)
