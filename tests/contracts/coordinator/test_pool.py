"""The pool at the coordinator, on each store: orders, restarts, several pools, and nodes that are bad."""

from __future__ import annotations

import asyncio
import time
import timeit
from dataclasses import replace

import pytest

from everstep import wire
from everstep.coordinator.pool.pool import decide_rest
from everstep.errors import Refused
from lab.pool_puppets import Perform, PuppetAgent, Stage, candidate, until


def test_an_agent_gets_orders_after_the_coordinators_clock_was_set_back(perform: Perform) -> None:
    async def story(stage: Stage) -> None:
        agent = PuppetAgent(stage.pool)
        agent.seen = seen = 1 << 52  # from a coordinator whose time was later
        orders = await agent.until(lambda orders: bool(orders.run))
        assert orders.number > seen
        agent.run(orders.run[0].number)
        assert (await agent.report()).number >= orders.number

    perform(story)


def test_an_agent_gets_the_first_trial_and_the_next_when_that_has_ended(perform: Perform) -> None:
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

    perform(story, num_trials=2)


def test_an_order_is_answered_at_once_while_the_agent_waits(perform: Perform) -> None:
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

    perform(story)


def test_orders_that_are_lost_or_repeated_change_nothing(perform: Perform) -> None:
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

    perform(story)


def test_what_runs_goes_on_when_the_coordinator_is_started_again(perform: Perform) -> None:
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

    perform(story, num_trials=2)


def test_an_order_that_was_kept_and_never_sent_is_sent_after_a_restart(perform: Perform) -> None:
    async def story(stage: Stage) -> None:
        agent = PuppetAgent(stage.pool)
        await agent.report()
        await until(lambda: stage.trials.placed_as)
        ((_, number),) = stage.trials.placed_as
        await stage.restart()
        agent.pool = stage.pool
        (order,) = await agent.begin()
        assert (order.number, order.hparams) == (number, {"lr": 0.1})

    perform(story)


def test_an_order_that_was_never_sent_ends_if_its_trial_is_gone_after_a_restart(perform: Perform) -> None:
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

    perform(story)


def test_an_end_is_told_again_if_the_coordinator_died_before_it_was_kept(perform: Perform) -> None:
    async def story(stage: Stage) -> None:
        agent = PuppetAgent(stage.pool)
        (order,) = await agent.begin()
        stage.trials.wanting.clear()
        await stage.restart()
        agent.pool = stage.pool
        agent.end(order.number, 1)
        await agent.until(lambda _: not agent.states)
        assert [(trial, end.exit_code) for trial, _, end in stage.trials.ends] == [(1, 1)]

    perform(story)


@pytest.mark.parametrize("how", ["park", "kill"])
def test_a_released_trial_keeps_its_slot_until_its_agent_has_confirmed_the_end(perform: Perform, how: str) -> None:
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

    perform(story, num_trials=2)


def test_a_trial_at_a_rung_is_parked_only_if_another_one_wants_its_slot(perform: Perform) -> None:
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

    perform(story)


def test_how_many_slots_a_trial_holds_is_known_at_once_however_many_others_hold_one(perform: Perform) -> None:
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

    perform(story, num_trials=1_000)


def test_the_view_names_slots_and_queue(perform: Perform) -> None:
    async def story(stage: Stage) -> None:
        agent = PuppetAgent(stage.pool, num_slots=2)
        given = await agent.begin(2)
        view = stage.pool.view("default")
        assert (view.num_slots, view.num_free, view.num_queued) == (2, 0, 1)
        assert [(slot.assignment, slot.trial) for slot in view.agents[0].slots] == [
            (each.number, each.trial) for each in given
        ]

    perform(story, num_trials=3)


def test_a_node_on_which_trials_of_three_experiments_fail_in_a_row_is_set_aside(perform: Perform) -> None:
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

    perform(story)


def test_each_pool_serves_its_own_experiments_and_one_that_moves_takes_its_trials_along(perform: Perform) -> None:
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

    perform(story, num_trials=2)


def test_a_node_that_would_make_a_pool_too_large_is_refused_with_the_numbers(perform: Perform) -> None:
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

    perform(story)


def test_calls_have_most_of_the_time_while_decisions_take_long() -> None:
    assert decide_rest(0.0005) == 0.0, "a small pool decides at once"
    assert decide_rest(0.01) == pytest.approx(0.04)
    assert decide_rest(3.0) == 0.1, "urgent work waits for the decision, not for the rest"
