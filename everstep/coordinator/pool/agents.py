"""The agents of pools as the coordinator knows them, and the orders for each.

In each call, both sides send everything, so a lost or repeated call changes nothing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from everstep import wire
from everstep.coordinator.experiments.seam import AssignmentEnd
from everstep.coordinator.pool.facts import GIVEN, KILLING, Assignment, NodeFacts
from everstep.coordinator.pool.node_health import MOST_ENDS, SeenEnd, decide_set_aside
from everstep.wire.pool import DRAINING, ENABLED

STRAY = "its agent was lost"
MOST_LEFT = 10_000  # agents that are remembered after they have left


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolAgentRow:
    """An agent as the store keeps it."""

    pool: str
    agent: str
    incarnation: str
    num_slots: int
    kind: str
    seen_at: float  # time of day
    state: str = ENABLED
    state_reason: str = ""


@dataclass(slots=True, eq=False)
class KnownAgent:
    pool: str
    agent: str
    incarnation: str = ""
    num_slots: int = 0
    kind: str = ""
    heard_at: float = 0.0  # by the coordinator's clock
    called_at: float = float("-inf")  # the same, but only if it has called this coordinator
    is_heard: bool = False  # by this coordinator, within its lease
    is_lost: bool = False
    is_dead: bool = False  # lost, and none of its processes is left, as its platform says
    lost_at: float = 0.0  # by the coordinator's clock
    forget_at: float = 0.0  # then look whether it may be forgotten
    hung_up_at: float | None = None  # it broke off a call, and has not called since
    reported: dict[int, wire.AssignmentState] = field(default_factory=dict)
    past: set[str] = field(default_factory=set)  # earlier incarnations
    replaced: str = ""  # the incarnation before, until it is stored that it has lost all
    environment: wire.NodeEnvironment = field(default_factory=wire.NodeEnvironment)
    over: tuple[str, ...] = ()  # trials whose states it may drop
    leaves_at: float = 0.0  # time of day; 0: it stays
    ends: deque[SeenEnd] = field(default_factory=lambda: deque(maxlen=MOST_ENDS))  # of trials, the oldest first
    # Starts from the time of day: a number from before a restart must not look like a current one.
    orders_number: int = field(default_factory=lambda: time.time_ns() // 1000)
    told: tuple[object, ...] = ()
    state: str = ENABLED  # or draining, disabled: see `agent_states`
    state_reason: str = ""

    @property
    def at(self) -> tuple[str, str]:
        """Pool and agent, as of its assignments."""
        return (self.pool, self.agent)

    @property
    def group(self) -> str:
        """The name under which the agent's calls are held."""
        return f"{self.pool}/{self.agent}"

    def node(self, live: Mapping[int, Assignment], now: float) -> NodeFacts:
        return NodeFacts(
            leaves_at=now + self.leaves_at - time.time() if self.leaves_at else None,
            agent=self.agent,
            num_slots=self.num_slots,
            kind=self.kind,
            is_open=self.is_heard and self.state == ENABLED and not (self.replaced or any(self.strays(live))),
            is_leaving=self.state == DRAINING,
        )

    def strays(self, live: Mapping[int, Assignment]) -> Iterable[int]:
        """Assignments that it runs but should not."""
        for number, state in self.reported.items():
            given = live.get(number)
            if state.state != "ended" and (given is None or given.agent != self.agent):
                yield number

    def runs(self, number: int) -> bool:
        return number in self.reported and self.reported[number].state != "ended"

    def has_ended_strays(self, states: Iterable[wire.AssignmentState], live: Container[int]) -> bool:
        """Whether assignments that it should not have run have ended since its last report."""
        return any(each.state == "ended" and each.number not in live and self.runs(each.number) for each in states)

    def note_end(self, given: Assignment, end: AssignmentEnd, failing: Collection[int]) -> str:
        """Record an end. Return why the node is set aside now; "" if it is not. `failing`: experiments that fail on
        other nodes too."""
        self.ends.append(
            SeenEnd(
                experiment=given.experiment,
                trial=given.trial,
                exit_code=end.exit_code,
                was_asked=end.was_asked or end.is_lost,
                reason=end.reason,
            )
        )
        return decide_set_aside(self.ends, failing) if self.state == ENABLED else ""

    @property
    def failed(self) -> set[int]:
        """Experiments whose trials have failed here."""
        return {each.experiment for each in self.ends if each.is_failure}

    def set_state(self, state: str, reason: str) -> bool:
        """Set the state. Return whether this changed anything."""
        if (state, reason) == (self.state, self.state_reason):
            return False
        self.state, self.state_reason = state, reason
        return True

    def number_after(self, seen: int) -> None:
        """An agent ignores orders with a lower number than the last; this clock may have been set back."""
        if seen > self.orders_number:
            self.orders_number, self.told = seen, ()

    def orders(
        self, live: Mapping[int, Assignment], ready: Mapping[int, wire.AssignmentOrder], over: Container[int]
    ) -> wire.PoolOrders:
        """`live`: assignments as stored, `ready`: the orders of those that may start, `over`: those that have ended or
        are lost, but are not yet stored as such."""
        mine = [each for each in live.values() if each.at == self.at]
        ours = [each for each in mine if each.number not in over]
        run = [order for each in ours if each.state == GIVEN and (order := self._order(each, ready)) is not None]
        end = [
            wire.EndOrder(number=each.number, how=wire.KILL if each.state == KILLING else wire.PARK, reason=each.reason)
            for each in ours
            if each.state != GIVEN
        ]
        end += [wire.EndOrder(number=number, how=wire.KILL, reason=STRAY) for number in self.strays(live)]
        confirmed = [number for number, state in self.reported.items() if state.state == "ended" and number not in live]
        told = (
            tuple(each.number for each in run),
            tuple((each.number, each.how) for each in end),
            tuple(confirmed),
            (self.state, self.state_reason),
            self.over,
        )
        if told != self.told:
            self.told, self.orders_number = told, self.orders_number + 1
        return wire.PoolOrders(
            number=self.orders_number,
            run=run,
            end=end,
            confirmed=confirmed,
            state=self.state,
            state_reason=self.state_reason,
            over=list(self.over),
        )

    def _order(self, given: Assignment, ready: Mapping[int, wire.AssignmentOrder]) -> wire.AssignmentOrder | None:
        """The whole order only for what is not running yet: replies to an agent with many slots stay small."""
        order = ready.get(given.number)
        if given.number not in self.reported:
            return order
        if order is None:
            return _known(given)
        return replace(order, hparams={}, order={}, config={}, policy={}, token="", secrets={})


class LeftAgents:
    """Agents that have left, by pool, name and incarnation: a late or repeated call must not bring them back."""

    def __init__(self) -> None:
        self._left: dict[tuple[str, str, str], None] = {}  # the oldest first

    def add(self, pool: str, agent: str, incarnation: str) -> None:
        self._left[pool, agent, incarnation] = None
        if len(self._left) > MOST_LEFT:
            del self._left[next(iter(self._left))]

    def __contains__(self, agent: tuple[str, str, str]) -> bool:
        return agent in self._left


def _known(given: Assignment) -> wire.AssignmentOrder:
    """The order for an assignment that its agent already ran when this coordinator started."""
    return wire.AssignmentOrder(
        number=given.number,
        slot=given.slot,
        experiment=given.experiment,
        trial=given.trial,
        trial_id=0,
        job=wire.trial_job(given.experiment, given.trial),
        hparams={},
        seed=0,
        order={},
        config={},
        policy={},
    )


def agent_row(agent: KnownAgent) -> PoolAgentRow:
    return PoolAgentRow(
        pool=agent.pool,
        agent=agent.agent,
        incarnation=agent.replaced or agent.incarnation,
        num_slots=agent.num_slots,
        kind=agent.kind,
        seen_at=time.time(),
        state=agent.state,
        state_reason=agent.state_reason,
    )


def agent_of(row: PoolAgentRow, heard_at: float) -> KnownAgent:
    agent = KnownAgent(row.pool, row.agent, row.incarnation, row.num_slots, row.kind, heard_at)
    agent.set_state(row.state, row.state_reason)
    return agent


def view_of(
    pool: str, agents: Iterable[KnownAgent], live: Iterable[Assignment], *, num_queued: int, num_wanted: int
) -> wire.PoolView:
    at = {(each.agent, each.slot): each for each in live if each.pool == pool}
    views = [
        wire.PoolAgentView(
            agent=agent.agent,
            kind=agent.kind,
            is_present=not agent.is_lost,
            slots=[_slot_view(slot, at.get((agent.agent, slot))) for slot in range(agent.num_slots)],
            state=agent.state,
            state_reason=agent.state_reason,
            environment=agent.environment,
        )
        for agent in sorted(agents, key=lambda each: each.agent)
    ]
    slots = [slot for view in views if view.is_present for slot in view.slots]
    return wire.PoolView(
        pool=pool,
        agents=views,
        num_slots=len(slots),
        num_free=sum(
            slot.assignment == 0 for view in views if view.is_present and view.state == ENABLED for slot in view.slots
        ),
        num_queued=num_queued,
        num_wanted=num_wanted,
    )


def _slot_view(slot: int, given: Assignment | None) -> wire.SlotView:
    if given is None:
        return wire.SlotView(slot=slot, assignment=0, experiment=0, trial=0, since=0.0)
    return wire.SlotView(
        slot=slot,
        assignment=given.number,
        experiment=given.experiment,
        trial=given.trial,
        since=given.began_at,
        state=given.state,
        reason=given.reason,
    )
