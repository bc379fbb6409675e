"""The pool at the coordinator, on each store: agents that are nothing but their reports, and trials that want slots."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from everstep import wire
from everstep.coordinator.experiments.seam import AssignmentEnd, Candidate
from everstep.coordinator.pool.pool import Pool
from everstep.coordinator.store.store import Store
from everstep.errors import Refused

PATIENCE_S = 60.0


class Trials:
    """Where trials come from: a list that stories change."""

    def __init__(self, num_trials: int) -> None:
        self.wanting = {number: candidate(number) for number in range(1, num_trials + 1)}
        self.parking: list[int] = []
        self.placed_as: list[tuple[int, int]] = []
        self.ends: list[tuple[int, int, AssignmentEnd]] = []
        self.dead: list[tuple[int, int]] = []

    def candidates(self) -> list[Candidate]:
        return list(self.wanting.values())

    def order(self, candidate: Candidate) -> wire.AssignmentOrder:
        return wire.AssignmentOrder(
            number=0,
            slot=0,
            experiment=candidate.experiment,
            trial=candidate.trial,
            trial_id=candidate.trial_id,
            job=candidate.job,
            hparams={"lr": candidate.trial / 10},
            seed=candidate.trial,
            order={"script": "train.py"},
            config={},
            policy={},
        )

    def note_parking(self, experiment: int, trial: int) -> None:
        self.parking.append(trial)

    def note_kinds(self, kinds: frozenset[str]) -> None:
        self.kinds = kinds

    async def placed(self, candidate: Candidate, assignment: int, kind: str) -> None:
        self.placed_as.append((candidate.trial, assignment))

    async def vacated(self, experiment: int, trial: int, assignment: int, end: AssignmentEnd) -> None:
        self.ends.append((trial, assignment, end))

    async def buried(self, experiment: int, trial: int, assignment: int) -> None:
        self.dead.append((trial, assignment))


def candidate(trial: int) -> Candidate:
    facts = {"experiment": 1, "rank": (trial,), "is_waiting": False, "waiting_since": 0.0}
    return Candidate(trial=trial, trial_id=trial, job=f"e1-t{trial}", **facts)  # type: ignore[arg-type]


class PuppetAgent:
    """Remembers what a real one would remember."""

    def __init__(self, pool: Pool, name: str = "a", *, num_slots: int = 1, incarnation: str = "first") -> None:
        self.pool, self.name, self.num_slots, self.incarnation = pool, name, num_slots, incarnation
        self.states: dict[int, wire.AssignmentState] = {}
        self.seen = 0

    async def report(self, wait_s: float = 0.0) -> wire.PoolOrders:
        message = wire.PoolReport(
            incarnation=self.incarnation,
            num_slots=self.num_slots,
            kind="test",
            assignments=list(self.states.values()),
            seen=self.seen,
            wait_s=wait_s,
        )
        orders = await self.pool.report("default", self.name, message)
        self.seen = orders.number
        for number in orders.confirmed:
            self.states.pop(number, None)
        return orders

    async def until(self, holds: Callable[[wire.PoolOrders], bool]) -> wire.PoolOrders:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            orders = await self.report(wait_s=0.2)
            if holds(orders):
                return orders
        raise AssertionError(f"the orders never came; the last were {orders}")

    async def begin(self, number: int = 1) -> list[wire.AssignmentOrder]:
        """Take so many assignments, and run them."""
        orders = await self.until(lambda orders: len(orders.run) == number)
        for each in orders.run:
            self.run(each.number)
        return orders.run

    def run(self, number: int) -> None:
        self.states[number] = wire.AssignmentState(number=number, state="running")

    def end(self, number: int, exit_code: int = 0, *, was_asked: bool = False) -> None:
        self.states[number] = wire.AssignmentState(
            number=number, state="ended", exit_code=exit_code, was_asked=was_asked, reason="it ended"
        )


async def until(look: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


class Stage:
    """A pool on a store that survives it."""

    def __init__(self, url: str, num_trials: int = 1, **settings: float) -> None:
        self._url, self._settings = url, settings
        self.trials = Trials(num_trials)

    async def __aenter__(self) -> Stage:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._store = Store(self._url)
        self.pool = Pool(self._store, now=time.monotonic, **self._settings)
        await self.pool.load()
        self.pool.open(self.trials)

    async def stop(self) -> None:
        await self.pool.close()
        self._store.close()

    async def restart(self) -> None:
        """All that is in memory is gone."""
        await self.stop()
        await self.start()


@pytest.fixture
def play(store_url: str, request: pytest.FixtureRequest) -> Callable[..., None]:
    """Play a story with a stage of its own; what earlier stories left in the store is not live any more."""

    def play(story: Callable[[Stage], Awaitable[None]], num_trials: int = 1, **settings: float) -> None:
        async def whole() -> None:
            async with Stage(store_url, num_trials, **settings) as stage:
                await story(stage)
                stage.trials.wanting.clear()
                for name in ("a", "b"):
                    agent = PuppetAgent(stage.pool, name, incarnation="last")
                    await agent.report()
                    await stage.pool.leave("default", name, wire.AgentLeave(incarnation="last", reason="done"))
                await until(lambda: not stage.pool._live and not stage.pool._gone)

        asyncio.run(asyncio.wait_for(whole(), 2 * PATIENCE_S))

    return play


Play = Callable[..., None]


def test_what_was_lost_with_an_agent_is_dead_once_it_is_started_again(play: Play) -> None:
    async def story(stage: Stage) -> None:
        (first,) = await PuppetAgent(stage.pool).begin()
        stage.pool.note_hang_up("default", "a", "first")
        await until(lambda: stage.trials.ends)
        assert (1, first.number) not in stage.trials.dead, "it may be cut off, and go on"
        await stage.restart()
        await PuppetAgent(stage.pool, incarnation="second").begin()
        assert (1, first.number) in stage.trials.dead

    play(story)


def test_what_an_agent_that_was_cut_off_still_runs_is_dead_once_it_has_ended(play: Play) -> None:
    async def story(stage: Stage) -> None:
        agent = PuppetAgent(stage.pool)
        (first,) = await agent.begin()
        stage.pool.note_hang_up("default", "a", "first")
        await until(lambda: stage.trials.ends)
        await agent.until(lambda orders: [each.number for each in orders.end] == [first.number])
        assert (1, first.number) not in stage.trials.dead
        agent.end(first.number)
        await agent.begin()
        assert (1, first.number) in stage.trials.dead

    play(story)


def test_an_agent_gets_orders_after_the_coordinators_clock_was_set_back(play: Play) -> None:
    async def story(stage: Stage) -> None:
        agent = PuppetAgent(stage.pool)
        agent.seen = seen = 1 << 52  # from a coordinator whose time was later
        orders = await agent.until(lambda orders: bool(orders.run))
        assert orders.number > seen
        agent.run(orders.run[0].number)
        assert (await agent.report()).number >= orders.number

    play(story)


def test_an_agent_gets_the_first_trial_and_the_next_when_that_has_ended(play: Play) -> None:
    async def story(stage: Stage) -> None:
        agent = PuppetAgent(stage.pool)
        (first,) = await agent.begin()
        assert (first.trial, first.slot, first.hparams) == (1, 0, {"lr": 0.1})
        assert stage.pool.holds(1, 1) == 1
        assert stage.trials.placed_as == [(1, first.number)], "its job exists before the order is sent"

        del stage.trials.wanting[1]
        agent.end(first.number)
        orders = await agent.until(lambda orders: [each.trial for each in orders.run] == [2])
        assert orders.run[0].number > first.number
        ((trial, number, end),) = stage.trials.ends
        assert (trial, number, end.exit_code, end.is_lost, end.was_asked) == (1, first.number, 0, False, False)
        assert stage.pool.holds(1, 1) == 0

    play(story, num_trials=2)


def test_an_order_is_answered_at_once_while_the_agent_waits(play: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.trials.wanting.clear()
        agent = PuppetAgent(stage.pool)
        await agent.report()
        await agent.report()
        held = asyncio.create_task(agent.until(lambda orders: bool(orders.run)))
        await asyncio.sleep(0)
        stage.trials.wanting[1] = candidate(1)
        stage.pool.note_change()
        assert [each.trial for each in (await held).run] == [1]

    play(story)


def test_orders_that_are_lost_or_repeated_change_nothing(play: Play) -> None:
    async def story(stage: Stage) -> None:
        agent = PuppetAgent(stage.pool)
        orders = await agent.until(lambda orders: bool(orders.run))
        agent.seen = 0  # the reply was lost
        again = await agent.report()
        assert again.run == orders.run
        agent.run(again.run[0].number)
        lean = (await agent.report()).run[0]
        assert (lean.number, lean.hparams) == (again.run[0].number, {}), "what it knows is not sent again"
        assert len(stage.trials.placed_as) == 1

    play(story)


def test_what_runs_goes_on_when_the_coordinator_is_started_again(play: Play) -> None:
    async def story(stage: Stage) -> None:
        agent = PuppetAgent(stage.pool, num_slots=2)
        given = await agent.begin(2)
        await stage.restart()
        agent.pool = stage.pool
        orders = await agent.report()
        assert sorted(each.number for each in orders.run) == sorted(each.number for each in given)
        assert orders.end == []
        assert stage.pool.holds(1, 1) == stage.pool.holds(1, 2) == 1
        assert stage.trials.ends == []
        agent.end(given[0].number)
        await agent.until(lambda orders: given[0].number not in agent.states)
        assert [(trial, number) for trial, number, _ in stage.trials.ends] == [(1, given[0].number)]

    play(story, num_trials=2)


def test_an_order_that_was_kept_and_never_sent_is_sent_after_a_restart(play: Play) -> None:
    async def story(stage: Stage) -> None:
        agent = PuppetAgent(stage.pool)
        await agent.report()
        await until(lambda: stage.trials.placed_as)
        ((_, number),) = stage.trials.placed_as
        await stage.restart()
        agent.pool = stage.pool
        (order,) = await agent.begin()
        assert (order.number, order.hparams) == (number, {"lr": 0.1})

    play(story)


def test_an_order_that_was_never_sent_ends_if_its_trial_is_gone_after_a_restart(play: Play) -> None:
    async def story(stage: Stage) -> None:
        agent = PuppetAgent(stage.pool)
        await agent.report()
        await until(lambda: stage.trials.placed_as)
        stage.trials.wanting.clear()
        await stage.restart()
        agent.pool = stage.pool
        await agent.report()
        await until(lambda: stage.trials.ends)
        assert stage.trials.ends[0][2].is_lost

    play(story)


def test_an_end_is_told_again_if_the_coordinator_died_before_it_was_kept(play: Play) -> None:
    async def story(stage: Stage) -> None:
        agent = PuppetAgent(stage.pool)
        (order,) = await agent.begin()
        stage.trials.wanting.clear()
        await stage.restart()
        agent.pool = stage.pool
        agent.end(order.number, 1)
        await agent.until(lambda _: not agent.states)
        assert [(trial, end.exit_code) for trial, _, end in stage.trials.ends] == [(1, 1)]

    play(story)


def test_a_new_incarnation_loses_what_the_one_before_had_and_is_given_it_again(play: Play) -> None:
    async def story(stage: Stage) -> None:
        agent = PuppetAgent(stage.pool)
        (order,) = await agent.begin()
        reborn = PuppetAgent(stage.pool, incarnation="second")
        (again,) = await reborn.begin()
        assert (again.trial, again.slot) == (order.trial, order.slot)
        assert again.number > order.number
        ((_, number, end),) = stage.trials.ends
        assert (number, end.is_lost) == (order.number, True)
        assert (order.trial, order.number) in stage.trials.dead, "what it ran has ended with it"
        with pytest.raises(Refused) as refusal:
            await agent.report()
        assert refusal.value.code == "pool-agent-superseded"

    play(story)


def test_a_silent_agent_is_lost_and_must_end_what_it_ran_before_it_gets_more(play: Play) -> None:
    async def story(stage: Stage) -> None:
        agent, other = PuppetAgent(stage.pool), PuppetAgent(stage.pool, "b")
        (order,) = await agent.begin()
        del stage.trials.wanting[2]
        await other.until(lambda _: bool(stage.trials.ends))
        (again,) = await other.begin()
        assert (again.trial, stage.trials.ends[0][2].is_lost) == (1, True)
        assert {each.agent: each.is_present for each in stage.pool.view("default").agents} == {"a": False, "b": True}

        stage.trials.wanting[3] = candidate(3)
        orders = await agent.report()
        assert [(each.number, each.how) for each in orders.end] == [(order.number, "kill")]
        assert orders.run == []
        assert (1, order.number) not in stage.trials.dead, "it may run on"
        agent.end(order.number, -9, was_asked=True)
        (third,) = await agent.begin()
        assert third.trial == 3
        assert (1, order.number) in stage.trials.dead
        assert len(stage.trials.ends) == 1, "its end is no news"

    play(story, num_trials=2, lease_s=0.5)


def test_an_agent_that_hangs_up_is_lost_soon_and_not_if_it_calls_again(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everstep.coordinator.pool.pool.HUNG_UP_S", 0.3)

    async def story(stage: Stage) -> None:
        agent = PuppetAgent(stage.pool)
        await agent.begin()
        stage.pool.note_hang_up("default", "a", agent.incarnation)
        await agent.report()
        await asyncio.sleep(0.4)
        assert stage.trials.ends == []
        stage.pool.note_hang_up("default", "a", agent.incarnation)
        await until(lambda: stage.trials.ends)

    play(story)


@pytest.mark.parametrize("how", ["park", "kill"])
def test_a_released_trial_keeps_its_slot_until_its_agent_has_confirmed_the_end(play: Play, how: str) -> None:
    async def story(stage: Stage) -> None:
        agent = PuppetAgent(stage.pool)
        (order,) = await agent.begin()
        del stage.trials.wanting[1]
        await stage.pool.release(1, 1, how, "because")
        orders = await agent.report()
        assert [(each.number, each.how, each.reason) for each in orders.end] == [(order.number, how, "because")]
        assert orders.run == [], "the slot is not free yet"
        await stage.restart()
        agent.pool = stage.pool
        assert [each.how for each in (await agent.report()).end] == [how], "it is durable"
        agent.end(order.number, 143, was_asked=True)
        (second,) = await agent.begin()
        assert second.trial == 2
        assert [(number, end.was_asked) for _, number, end in stage.trials.ends] == [(order.number, True)]

    play(story, num_trials=2)


def test_a_trial_at_a_rung_is_parked_only_if_another_one_wants_its_slot(play: Play) -> None:
    async def story(stage: Stage) -> None:
        agent = PuppetAgent(stage.pool)
        (order,) = await agent.begin()
        waiting = replace(candidate(1), is_waiting=True, waiting_since=time.monotonic())
        stage.trials.wanting = {1: waiting}
        stage.pool.note_change()
        await asyncio.sleep(0.3)
        assert (await agent.report()).end == []
        stage.trials.wanting[2] = candidate(2)
        stage.pool.note_change()
        orders = await agent.until(lambda orders: bool(orders.end))
        assert [(each.number, each.how) for each in orders.end] == [(order.number, "park")]
        assert stage.trials.parking == [1]
        agent.end(order.number, 143, was_asked=True)
        (second,) = await agent.begin()
        assert second.trial == 2

    play(story)


def test_an_agent_that_leaves_gives_all_back_and_is_not_listed_any_more(play: Play) -> None:
    async def story(stage: Stage) -> None:
        agent = PuppetAgent(stage.pool)
        await agent.begin()
        await stage.pool.leave("default", "a", wire.AgentLeave(incarnation="first", reason="asked"))
        await until(lambda: stage.trials.ends)
        assert stage.trials.ends[0][2].is_lost
        assert stage.pool.view("default").agents == []

    play(story)


def test_the_view_names_slots_and_queue(play: Play) -> None:
    async def story(stage: Stage) -> None:
        agent = PuppetAgent(stage.pool, num_slots=2)
        given = await agent.begin(2)
        view = stage.pool.view("default")
        assert (view.num_slots, view.num_free, view.num_queued) == (2, 0, 1)
        assert [(slot.assignment, slot.trial) for slot in view.agents[0].slots] == [
            (each.number, each.trial) for each in given
        ]

    play(story, num_trials=3)
