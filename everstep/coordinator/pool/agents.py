"""The agents of pools as the coordinator knows them, and the orders for each.

Both sides say all that they have in each call, so that a lost or a repeated one changes nothing."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from everstep import wire
from everstep.coordinator.pool.decisions import GIVEN, KILLING, AgentSlots, Assignment

PARK, KILL = "park", "kill"
STRAY = "its agent was lost, and the slot was given up"


@dataclass(slots=True, eq=False)
class KnownAgent:
    pool: str
    agent: str
    incarnation: str = ""
    num_slots: int = 0
    kind: str = ""
    heard_at: float = 0.0  # by the coordinator's clock
    is_heard: bool = False  # by this coordinator, within its lease
    is_lost: bool = False
    hung_up_at: float | None = None  # it broke off a call, and has not called since
    reported: dict[int, wire.AssignmentState] = field(default_factory=dict)
    past: set[str] = field(default_factory=set)  # incarnations that others have followed
    # Starts from the time of day: a number from before a restart must not be mistaken for one of now.
    orders_number: int = field(default_factory=lambda: time.time_ns() // 1000)
    told: tuple[object, ...] = ()

    @property
    def group(self) -> str:
        """Of the calls that are held for it."""
        return f"{self.pool}/{self.agent}"

    def slots(self, live: Mapping[int, Assignment]) -> AgentSlots:
        is_open = self.is_heard and not any(self.strays(live))
        return AgentSlots(agent=self.agent, num_slots=self.num_slots, is_open=is_open)

    def strays(self, live: Mapping[int, Assignment]) -> Iterable[int]:
        """What it runs and should not."""
        for number, state in self.reported.items():
            given = live.get(number)
            if state.state != "ended" and (given is None or given.agent != self.agent):
                yield number

    def runs(self, number: int) -> bool:
        return number in self.reported and self.reported[number].state != "ended"

    def has_ended_strays(self, states: Iterable[wire.AssignmentState], live: Container[int]) -> bool:
        """Since its last report."""
        return any(each.state == "ended" and each.number not in live and self.runs(each.number) for each in states)

    def number_after(self, seen: int) -> None:
        """An agent takes no orders with a lower number than it has seen, as those are once this clock was set back."""
        if seen > self.orders_number:
            self.orders_number, self.told = seen, ()

    def orders(
        self, live: Mapping[int, Assignment], ready: Mapping[int, wire.AssignmentOrder], over: Container[int]
    ) -> wire.PoolOrders:
        """`live`: assignments as they were kept, `ready`: the orders of those that may begin, `over`: those that have
        ended or are lost, which is not kept yet."""
        mine = [each for each in live.values() if (each.pool, each.agent) == (self.pool, self.agent)]
        ours = [each for each in mine if each.number not in over]
        run = [order for each in ours if each.state == GIVEN and (order := self._order(each, ready)) is not None]
        end = [
            wire.EndOrder(number=each.number, how=KILL if each.state == KILLING else PARK, reason=each.reason)
            for each in ours
            if each.state != GIVEN
        ]
        end += [wire.EndOrder(number=number, how=KILL, reason=STRAY) for number in self.strays(live)]
        confirmed = [number for number, state in self.reported.items() if state.state == "ended" and number not in live]
        told = (
            tuple(each.number for each in run),
            tuple((each.number, each.how) for each in end),
            tuple(confirmed),
        )
        if told != self.told:
            self.told, self.orders_number = told, self.orders_number + 1
        return wire.PoolOrders(number=self.orders_number, run=run, end=end, confirmed=confirmed)

    def _order(self, given: Assignment, ready: Mapping[int, wire.AssignmentOrder]) -> wire.AssignmentOrder | None:
        """The whole order only for what it does not run yet: a reply to an agent with many slots stays small."""
        order = ready.get(given.number)
        if given.number not in self.reported:
            return order
        if order is None:
            return _known(given)
        return replace(order, hparams={}, order={}, config={}, policy={})


def _known(given: Assignment) -> wire.AssignmentOrder:
    """Of an assignment that its agent runs since before this coordinator began."""
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


def view_of(pool: str, agents: Iterable[KnownAgent], live: Iterable[Assignment], *, num_queued: int) -> wire.PoolView:
    at = {(each.agent, each.slot): each for each in live if each.pool == pool}
    views = [
        wire.PoolAgentView(
            agent=agent.agent,
            kind=agent.kind,
            is_present=not agent.is_lost,
            slots=[_slot_view(slot, at.get((agent.agent, slot))) for slot in range(agent.num_slots)],
        )
        for agent in sorted(agents, key=lambda each: each.agent)
    ]
    slots = [slot for view in views if view.is_present for slot in view.slots]
    return wire.PoolView(
        pool=pool,
        agents=views,
        num_slots=len(slots),
        num_free=sum(slot.assignment == 0 for slot in slots),
        num_queued=num_queued,
    )


def _slot_view(slot: int, given: Assignment | None) -> wire.SlotView:
    if given is None:
        return wire.SlotView(slot=slot, assignment=0, experiment=0, trial=0, since=0.0)
    return wire.SlotView(
        slot=slot, assignment=given.number, experiment=given.experiment, trial=given.trial, since=given.began_at
    )
