"""The pool at the coordinator, on each store: agents that are nothing but their reports, and trials that want slots."""

from __future__ import annotations

import asyncio
import time
import timeit
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from everstep import wire
from everstep.coordinator.experiments.seam import AssignmentEnd, Candidate, TrialPace
from everstep.coordinator.pool.pool import Pool, decide_rest
from everstep.coordinator.store.store import Store
from everstep.errors import Refused
from everstep.storage.database import StoreError

PATIENCE_S = 60.0


class Trials:
    """Where trials come from: a list that stories change."""

    def __init__(self, num_trials: int) -> None:
        self.wanting = {number: candidate(number) for number in range(1, num_trials + 1)}
        self.parking: list[int] = []
        self.placed_as: list[tuple[int, int]] = []
        self.ends: list[tuple[int, int, AssignmentEnd]] = []
        self.others: list[Sequence[int]] = []  # at each end
        self.shrinking: list[int] = []
        self.refused: Container[int] = ()  # assignments that the trial no longer wants
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

    def note_shrinking(self, experiment: int, trial: int) -> None:
        self.shrinking.append(trial)

    def progress(self, experiment: int, trial: int) -> TrialPace | None:
        return None

    def refuse(self, experiment: int, reason: str) -> None: ...

    def note_kinds(self, kinds: Mapping[str, frozenset[str]]) -> None:
        self.kinds = kinds

    async def placed(self, candidate: Candidate, assignment: int, kind: str, *, is_first: bool) -> bool:
        self.placed_as.append((candidate.trial, assignment))
        return assignment not in self.refused

    async def vacated(
        self, experiment: int, trial: int, assignment: int, end: AssignmentEnd, others: Sequence[int]
    ) -> None:
        self.ends.append((trial, assignment, end))
        self.others.append(others)

    async def buried(self, experiment: int, trial: int, assignment: int) -> None:
        self.dead.append((trial, assignment))


def candidate(trial: int, experiment: int = 1, *, least: int = 1, most: int = 1) -> Candidate:
    facts = {"experiment": experiment, "rank": (trial,), "is_waiting": False, "waiting_since": 0.0}
    return Candidate(
        trial=trial,
        trial_id=trial,
        job=f"e1-t{trial}",
        min_slots=least,
        max_slots=most,
        **facts,  # type: ignore[arg-type]
    )


class PuppetAgent:
    """Remembers what a real one would remember."""

    def __init__(
        self, pool: Pool, name: str = "a", *, num_slots: int = 1, incarnation: str = "first", of: str = "default"
    ) -> None:
        self.pool, self.name, self.num_slots, self.incarnation, self.of = pool, name, num_slots, incarnation, of
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
        orders = await self.pool.report(self.of, self.name, message)
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


async def let_others_run() -> None:
    """A call that need not wait for anything is over by then."""
    for _ in range(20):
        await asyncio.sleep(0)


class Stage:
    """A pool on a store that survives it. Puppets report only when a story tells them to, so a busy machine must not
    make them silent."""

    def __init__(self, url: str, num_trials: int = 1, *, lease_s: float = 2 * PATIENCE_S) -> None:
        self._url, self._lease_s = url, lease_s
        self._skipped_s = 0.0
        self.trials = Trials(num_trials)

    async def __aenter__(self) -> Stage:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self.store = Store(self._url)
        self.pool = Pool(self.store, now=self._now, lease_s=self._lease_s)
        await self.pool.load()
        self.pool.open(self.trials)

    async def stop(self) -> None:
        await self.pool.close()
        self.store.close()

    def _now(self) -> float:
        return time.monotonic() + self._skipped_s

    def skip_a_lease(self) -> None:
        """All agents have been silent for so long, but for those that report before anything else happens."""
        self._skipped_s += self._lease_s

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
                await until(lambda: stage.pool._book.is_stored and not (stage.pool._book.kept or stage.pool._dead))

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


def test_a_lost_agent_is_forgotten_once_all_that_it_ran_is_confirmed_dead(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everstep.coordinator.pool.pool.GONE_S", 0.2)

    async def story(stage: Stage) -> None:
        def listed() -> set[str]:
            return {each.agent for each in stage.pool.view("default").agents}

        (first,) = await PuppetAgent(stage.pool).begin()
        stage.trials.wanting.clear()
        await PuppetAgent(stage.pool, "b").report()
        await until(lambda: "b" not in listed())
        assert "a" in listed(), "what it ran may run on"

        back = PuppetAgent(stage.pool, incarnation="second")
        await back.until(lambda _: bool(stage.trials.dead))
        await until(lambda: not listed())
        await stage.restart()
        await PuppetAgent(stage.pool, incarnation="third").report()
        await until(lambda: not listed())
        assert stage.trials.dead.count((1, first.number)) == 1, "the dead are buried once"

    play(story, lease_s=0.5)


def test_what_a_node_ran_is_dead_at_once_if_its_platform_has_seen_all_its_processes_end(play: Play) -> None:
    async def story(stage: Stage) -> None:
        (first,) = await PuppetAgent(stage.pool).begin()
        stage.pool.note_hang_up("default", "a", "first")
        stage.pool.note_dead("default", ["a"])
        (second,) = await PuppetAgent(stage.pool, "b").begin()
        assert second.trial == first.trial
        await until(lambda: stage.trials.dead == [(1, first.number)])

    play(story)


def test_a_coordinator_that_is_started_again_also_takes_the_platforms_word(play: Play) -> None:
    async def story(stage: Stage) -> None:
        (first,) = await PuppetAgent(stage.pool).begin()
        await stage.restart()
        assert not stage.trials.ends
        stage.pool.note_dead("default", ["a"])
        await until(lambda: stage.trials.dead == [(1, first.number)])

    play(story)


def test_an_agent_that_calls_again_is_not_the_node_that_has_ended(play: Play) -> None:
    async def story(stage: Stage) -> None:
        agent = PuppetAgent(stage.pool)
        await agent.begin()
        stage.pool.note_dead("default", ["a"])  # its connection is open
        await agent.report()
        stage.pool.note_dead("default", ["a"])
        stage.pool.note_hang_up("default", "a", "first")
        await until(lambda: stage.trials.ends)
        await let_others_run()
        assert stage.trials.dead == [], "it may be cut off, and go on"

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


def test_what_has_ended_on_a_node_is_not_given_to_its_next_agent(play: Play) -> None:
    """The coordinator dies after it has stored the next agent, and before it has stored the end."""

    async def story(stage: Stage) -> None:
        node, other = PuppetAgent(stage.pool), PuppetAgent(stage.pool, "b")
        (first,), (second,) = await node.begin(), await other.begin()
        vacated, reached, is_let_go, never = stage.trials.vacated, asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def slowly(experiment: int, trial: int, assignment: int, *rest: Any) -> None:
            reached.set()
            await (never if assignment == first.number else is_let_go).wait()
            await vacated(experiment, trial, assignment, *rest)

        stage.trials.vacated = slowly  # type: ignore[method-assign]
        other.end(second.number)
        await other.report()
        await reached.wait()
        node.end(first.number)
        await node.report()
        await PuppetAgent(stage.pool, incarnation="next").report()
        reached.clear()
        is_let_go.set()
        await reached.wait()
        await stage.stop()
        stage.trials.vacated = vacated  # type: ignore[method-assign]
        await stage.start()
        await PuppetAgent(stage.pool, "b").report()
        (again,) = await PuppetAgent(stage.pool, incarnation="next").begin()
        assert again.number > second.number, "an assignment is never given twice"

    play(story, num_trials=2)


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


@pytest.mark.parametrize("how", ["restart", "leave"])
def test_an_assignment_is_not_given_to_an_agents_next_incarnation_if_the_coordinator_dies_before_its_loss_is_stored(
    play: Play, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async def story(stage: Stage) -> None:
        is_losing = asyncio.Event()

        async def never(*_: object) -> None:
            is_losing.set()
            await asyncio.Event().wait()

        agent = PuppetAgent(stage.pool)
        (order,) = await agent.begin()
        monkeypatch.setattr(stage.trials, "vacated", never)
        reborn = PuppetAgent(stage.pool, incarnation="second")
        if how == "leave":
            await stage.pool.leave("default", "a", wire.AgentLeave(incarnation="first", reason="asked"))
        else:
            await reborn.report()
        await is_losing.wait()
        await stage.restart()
        monkeypatch.undo()
        reborn.pool = stage.pool
        (again,) = await reborn.begin()
        assert (again.trial, again.number > order.number) == (order.trial, True)
        ((_, number, end),) = stage.trials.ends
        assert (number, end.is_lost) == (order.number, True)
        assert (order.trial, order.number) in stage.trials.dead

    play(story)


def test_a_silent_agent_is_lost_and_must_end_what_it_ran_before_it_gets_more(play: Play) -> None:
    async def story(stage: Stage) -> None:
        agent, other = PuppetAgent(stage.pool), PuppetAgent(stage.pool, "b")
        (order,) = await agent.begin()
        del stage.trials.wanting[2]
        stage.skip_a_lease()
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

    play(story, num_trials=2)


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


def test_a_save_that_fails_late_does_not_bring_back_what_another_has_replaced_meanwhile(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(stage: Stage) -> None:
        is_giving, may_fail, write = asyncio.Event(), asyncio.Event(), stage.store.write

        async def fail_to_give(change: Callable[..., object]) -> object:
            if is_giving.is_set() or not stage.pool.holds(1, 1):
                return await write(change)
            is_giving.set()
            await may_fail.wait()
            raise StoreError("not kept")

        monkeypatch.setattr(stage.store, "write", fail_to_give)
        agent, other = PuppetAgent(stage.pool), PuppetAgent(stage.pool, "b")
        await agent.report()
        await is_giving.wait()
        released = asyncio.create_task(stage.pool.release(1, 1, "kill", "killed by a user"))
        await asyncio.sleep(0)  # its change is made; it waits for the save that will fail
        may_fail.set()
        await released
        stage.trials.wanting = {2: candidate(2)}
        await other.begin()  # the next save
        (end,) = (await agent.report()).end
        assert end.how == "kill"
        agent.end(end.number, 137, was_asked=True)
        await agent.until(lambda _: not stage.pool.holds(1, 1))

    play(story)


def test_a_call_that_repeats_a_change_returns_when_the_save_under_way_has_stored_it(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three calls, only the first one changes anything."""

    async def story(stage: Stage) -> None:
        happened: list[str] = []
        write = stage.store.write

        async def stored(change: Callable[..., object]) -> object:
            await let_others_run()
            kept = await write(change)
            happened.append("stored")
            return kept

        async def call(made: Awaitable[None]) -> None:
            await made
            happened.append("returned")

        agent = PuppetAgent(stage.pool)
        (order,) = await agent.begin()
        stage.trials.wanting.clear()
        await agent.until(lambda _: stage.pool._book.is_stored)
        monkeypatch.setattr(stage.store, "write", stored)
        drain = wire.AgentsChange(state="draining", agents=["a"])
        for make in (lambda: stage.pool.release(1, 1, "kill", "x"), lambda: stage.pool.change_agents("default", drain)):
            happened.clear()
            await asyncio.gather(*(call(make()) for _ in range(3)))
            assert happened[0] == "stored", happened
        agent.end(order.number, 137, was_asked=True)
        await agent.until(lambda _: not agent.states)
        enable = wire.AgentsChange(state="enabled", agents=["a"])
        await stage.pool.change_agents("default", enable)

    play(story)


def test_a_call_whose_change_another_call_failed_to_store_stores_it_itself(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(stage: Stage) -> None:
        write, num_writes = stage.store.write, 0

        async def fail_once(change: Callable[..., object]) -> object:
            nonlocal num_writes
            num_writes += 1
            if num_writes > 1:
                return await write(change)
            await let_others_run()
            raise StoreError("not kept")

        agent = PuppetAgent(stage.pool)
        (order,) = await agent.begin()
        del stage.trials.wanting[1]
        await agent.until(lambda _: stage.pool._book.is_stored)
        monkeypatch.setattr(stage.store, "write", fail_once)
        first, second = (stage.pool.release(1, 1, "kill", "because") for _ in range(2))
        failed, kept = await asyncio.gather(first, second, return_exceptions=True)
        assert isinstance(failed, StoreError) and kept is None
        monkeypatch.undo()
        await stage.restart()
        agent.pool = stage.pool
        assert [(each.number, each.how) for each in (await agent.report()).end] == [(order.number, "kill")]

    play(story)


def test_how_many_slots_a_trial_holds_is_known_at_once_however_many_others_hold_one(play: Play) -> None:
    async def story(stage: Stage) -> None:
        agent = PuppetAgent(stage.pool, num_slots=1_000)
        await agent.report()

        def asking_s() -> float:
            return min(timeit.repeat(lambda: stage.pool.holds(1, 1), number=100, repeat=20))

        alone_s = asking_s()
        await agent.begin(1_000)
        assert [stage.pool.holds(1, trial) for trial in (1, 1_000, 1_001)] == [1, 1, 0]
        assert asking_s() < 20 * alone_s
        await stage.restart()
        assert [stage.pool.holds(1, trial) for trial in (1, 1_000, 1_001)] == [1, 1, 0]
        stage.trials.wanting.clear()
        await stage.pool.leave("default", "a", wire.AgentLeave(incarnation="first", reason="asked"))
        await until(lambda: not any(stage.pool.holds(1, trial) for trial in range(1, 1_001)))

    play(story, num_trials=1_000)


def test_an_agent_that_leaves_gives_all_back_and_is_not_listed_any_more(play: Play) -> None:
    async def story(stage: Stage) -> None:
        agent = PuppetAgent(stage.pool)
        await agent.begin()
        await stage.pool.leave("default", "a", wire.AgentLeave(incarnation="first", reason="asked"))
        await until(lambda: stage.trials.ends)
        assert stage.trials.ends[0][2].is_lost
        assert stage.pool.view("default").agents == []

    play(story)


@pytest.mark.parametrize("state", ["enabled", "draining"])
def test_a_late_call_of_an_agent_that_has_left_does_not_bring_it_back(play: Play, state: str) -> None:
    async def story(stage: Stage) -> None:
        agent, other = PuppetAgent(stage.pool), PuppetAgent(stage.pool, "b", num_slots=0)
        await other.report()
        await agent.begin()
        await stage.pool.change_agents("default", wire.AgentsChange(state=state, agents=["a"]))
        farewell = wire.AgentLeave(incarnation="first", reason="asked")
        await stage.pool.leave("default", "a", farewell)
        with pytest.raises(Refused) as refusal:
            await agent.report()
        assert (refusal.value.status, refusal.value.code) == (409, "pool-agent-left")
        await stage.pool.leave("default", "a", farewell)  # repeated
        await until(lambda: stage.trials.ends)
        assert [each.agent for each in stage.pool.view("default").agents if each.is_present] == ["b"]

        other.num_slots = 1
        (order,) = await other.begin()
        assert order.trial == 1, "no ghost holds it"
        back = PuppetAgent(stage.pool, num_slots=2, incarnation="second")
        await back.report()
        assert [each.is_present for each in stage.pool.view("default").agents] == [True, True]
        await stage.pool.change_agents("default", wire.AgentsChange(state="enabled", is_all=True))

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


# --- trials with several slots ---


def test_a_trial_grows_to_all_free_slots_and_shrinks_by_one_for_another_experiment(play: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.trials.wanting = {1: candidate(1, most=3)}
        a, b = PuppetAgent(stage.pool, num_slots=2), PuppetAgent(stage.pool, "b")
        await b.report()
        given = [*await a.begin(2), *await b.begin(1)]
        assert {each.trial for each in given} == {1} and len({each.number for each in given}) == 3
        assert stage.pool.holds(1, 1) == 3

        stage.trials.wanting[2] = candidate(2, experiment=2)
        stage.pool.note_change()
        agents = {"a": a, "b": b}
        await until(lambda: any(each.state == "parking" for each in stage.pool._book.kept.values()))  # stored
        ends = {name: (await agent.report()).end for name, agent in agents.items()}
        ((giver, (end,)),) = [(name, found) for name, found in ends.items() if found]
        assert end.how == "park" and stage.trials.shrinking == [1] and not stage.trials.parking
        assert stage.pool.is_shrinking(1, 1)
        running = [each.trial for agent in agents.values() for each in (await agent.report()).run]
        assert running == [1, 1], "its slot is not free yet"
        agents[giver].end(end.number, 143, was_asked=True)
        orders = await agents[giver].until(lambda orders: any(each.trial == 2 for each in orders.run))
        assert max(each.number for each in orders.run) > max(each.number for each in given)
        rest = sorted(each.number for each in given if each.number != end.number)
        assert (stage.trials.others, stage.pool.holds(1, 1)) == ([rest], 2)
        assert not stage.pool.is_shrinking(1, 1)

    play(story)


def test_several_slots_of_a_trial_survive_a_restart_and_end_one_by_one(play: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.trials.wanting = {1: candidate(1, most=3)}
        agent = PuppetAgent(stage.pool, num_slots=3)
        numbers = sorted(each.number for each in await agent.begin(3))
        await stage.restart()
        agent.pool = stage.pool
        assert stage.pool.holds(1, 1) == 3
        assert sorted(each.number for each in (await agent.report()).run) == numbers
        stage.trials.wanting.clear()
        for ended in (numbers[2], numbers[0], numbers[1]):
            agent.end(ended)
            await agent.until(lambda _, ended=ended: ended not in agent.states)  # type: ignore[misc]
        assert [number for _, number, _ in stage.trials.ends] == [numbers[2], numbers[0], numbers[1]]
        assert stage.trials.others == [numbers[:2], [numbers[1]], []]
        assert stage.pool.holds(1, 1) == 0

    play(story)


def num_decisions(pool: Pool) -> int:
    return sum(pool.decider.measures.decisions.counts)


def test_after_a_restart_nothing_is_taken_back_before_all_nodes_with_assignments_have_reported(play: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.trials.wanting = {1: candidate(1, most=3)}
        a, b = PuppetAgent(stage.pool, num_slots=2), PuppetAgent(stage.pool, "b")
        await b.report()
        given = [*await a.begin(2), *await b.begin(1)]
        await stage.stop()
        stage.trials.wanting[2] = candidate(2, experiment=2)
        await stage.start()
        a.pool = b.pool = stage.pool
        await a.report()
        for _ in range(2):  # the first may have begun before the report
            number = num_decisions(stage.pool)
            stage.pool.note_change()
            await until(lambda number=number: num_decisions(stage.pool) > number)  # type: ignore[misc]
        assert (await a.report()).end == [], "b may have free slots, or other trials"
        assert stage.pool.holds(1, 1) == len(given) == 3 and not stage.pool.is_shrinking(1, 1)

        await b.report()
        await until(lambda: any(each.state == "parking" for each in stage.pool._book.kept.values()))
        ends = [*(await a.report()).end, *(await b.report()).end]
        assert len(ends) == 1, "all facts are known: one slot is enough for the other trial"

    play(story)


def test_an_agent_that_returns_ends_all_that_it_had_of_a_trial_before_it_gets_anything(play: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.trials.wanting = {1: candidate(1, most=3)}
        lost, other = PuppetAgent(stage.pool, num_slots=2), PuppetAgent(stage.pool, "b")
        await other.report()
        old = sorted(each.number for each in await lost.begin(2))
        (kept,) = await other.begin(1)
        stage.pool.note_hang_up("default", "a", "first")
        await other.until(lambda _: len(stage.trials.ends) == 2)
        assert all(end.is_lost for _, _, end in stage.trials.ends)
        left = [sorted([old[1], kept.number]), [kept.number]]
        assert stage.trials.others == left, "the trial is never without a slot"

        orders = await lost.until(lambda orders: len(orders.end) == 2)
        assert sorted((each.number, each.how) for each in orders.end) == [(each, "kill") for each in old]
        assert orders.run == []
        lost.end(old[0], -9, was_asked=True)
        assert (await lost.report()).run == [], "the other one may run on"
        lost.end(old[1], -9, was_asked=True)
        again = await lost.begin(2)
        assert min(each.number for each in again) > max(old)
        assert {(1, each) for each in old} <= set(stage.trials.dead)
        assert stage.pool.holds(1, 1) == 3

    play(story)


def test_a_slot_that_a_trial_no_longer_wants_is_taken_back_and_the_others_stay(play: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.trials.wanting = {1: candidate(1, most=1)}
        agent = PuppetAgent(stage.pool, num_slots=2)
        (first,) = await agent.begin(1)
        stage.trials.refused = range(first.number + 1, 1 << 40)
        stage.trials.wanting = {1: candidate(1, most=2)}
        stage.pool.note_change()
        await until(lambda: stage.trials.ends)
        stage.trials.wanting = {1: candidate(1, most=1)}
        _, number, end = stage.trials.ends[0]
        assert (number, end.is_lost, stage.trials.others[0]) == (first.number + 1, True, [first.number])
        orders = await agent.until(lambda _: stage.pool.holds(1, 1) == 1)
        assert [each.number for each in orders.run] == [first.number] and not orders.end

    play(story)


def test_a_gang_gets_all_of_its_slots_at_once_or_none(play: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.trials.wanting = {1: candidate(1, least=2, most=2)}
        agent = PuppetAgent(stage.pool, num_slots=1)
        await agent.report()
        await agent.report(0.2)
        assert stage.pool.holds(1, 1) == 0
        other = PuppetAgent(stage.pool, "b")
        await other.report()
        numbers = {(await agent.begin(1))[0].number, (await other.begin(1))[0].number}
        assert len(numbers) == 2 and stage.pool.holds(1, 1) == 2

    play(story)


# --- several pools, and nodes that are bad ---


def test_a_node_on_which_trials_of_three_experiments_fail_in_a_row_is_set_aside(play: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.trials.wanting = {number: candidate(number, experiment=number) for number in (1, 2, 3)}
        bad, good = PuppetAgent(stage.pool), PuppetAgent(stage.pool, "b", num_slots=0)
        await good.report()
        for _ in (1, 2, 3):
            (order,) = await bad.begin()
            bad.end(order.number, 1)
            del stage.trials.wanting[order.trial]
            await bad.report()
            await until(lambda number=order.number: number not in stage.pool._book.kept)
        await until(lambda: stage.pool.view("default").agents[0].state == "disabled")
        assert "trials of 3 experiments failed here in a row" in stage.pool.view("default").agents[0].state_reason

        stage.trials.wanting[4] = candidate(4, experiment=4)
        stage.pool.note_change()
        good.num_slots = 1
        (order,) = await good.begin()
        assert order.trial == 4 and (await bad.report()).run == []
        await stage.restart()
        bad.pool = stage.pool
        assert (await bad.report()).state == "disabled", "it is durable"
        await stage.pool.change_agents("default", wire.AgentsChange(state="enabled", is_all=True))

    play(story)


def test_each_pool_serves_its_own_experiments_and_one_that_moves_takes_its_trials_along(play: Play) -> None:
    async def story(stage: Stage) -> None:
        here, there = PuppetAgent(stage.pool), PuppetAgent(stage.pool, "b", of="other")
        (first,) = await here.begin()
        assert first.trial == 1 and (await there.report()).run == []
        assert [place.trial for place in stage.pool.standing("default").queue] == [2]

        stage.trials.wanting[2] = replace(stage.trials.wanting[2], pool="other")
        stage.pool.note_change()
        (second,) = await there.begin()
        assert second.trial == 2

        stage.trials.wanting[1] = replace(stage.trials.wanting[1], pool="other")
        stage.pool.note_change()
        orders = await here.until(lambda orders: bool(orders.end))
        assert [(each.number, each.how) for each in orders.end] == [(first.number, "park")]
        here.end(first.number, 143, was_asked=True)
        await here.until(lambda orders: orders.confirmed == [first.number])
        assert stage.pool.holds(1, 1) == 0 and (await here.report()).run == []
        there.end(second.number)
        del stage.trials.wanting[2]
        (moved,) = await there.begin()
        assert moved.trial == 1
        await stage.pool.leave("other", "b", wire.AgentLeave(incarnation="first", reason="done"))

    play(story, num_trials=2)


def test_a_node_that_would_make_a_pool_too_large_is_refused_with_the_numbers(play: Play) -> None:
    async def story(stage: Stage) -> None:
        nodes = [PuppetAgent(stage.pool, f"n{place}", num_slots=1000) for place in range(10)]
        for each in nodes:
            await each.report()
        with pytest.raises(
            Refused, match="pool default has 10000 slots on 10 nodes, and more offers 1 more: "
        ) as refused:
            await PuppetAgent(stage.pool, "more").report()
        assert refused.value.code == "pool-full"
        await nodes[0].report()
        await PuppetAgent(stage.pool, "more", of="other").report()
        for each in nodes:
            await stage.pool.leave("default", each.name, wire.AgentLeave(incarnation=each.incarnation, reason="done"))

    play(story)


def test_calls_have_most_of_the_time_while_decisions_take_long() -> None:
    assert decide_rest(0.0005) == 0.0, "a small pool decides at once"
    assert decide_rest(0.01) == pytest.approx(0.04)
    assert decide_rest(3.0) == 0.1, "urgent work waits for the decision, not for the rest"
