"""The pool at the coordinator, on each store: agents that are lost or return, and when what they ran is dead."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everstep import wire
from everstep.errors import Refused
from lab.pool_puppets import Perform, PuppetAgent, Stage, candidate, let_others_run, until


def test_what_was_lost_with_an_agent_is_dead_once_it_is_started_again(perform: Perform) -> None:
    async def story(stage: Stage) -> None:
        (first,) = await PuppetAgent(stage.pool).begin()
        stage.pool.note_hang_up("default", "a", "first")
        await until(lambda: stage.trials.ends)
        assert (1, first.number) not in stage.trials.dead, "it may be cut off, and go on"
        await stage.restart()
        await PuppetAgent(stage.pool, incarnation="second").begin()
        assert (1, first.number) in stage.trials.dead

    perform(story)


def test_what_an_agent_that_was_cut_off_still_runs_is_dead_once_it_has_ended(perform: Perform) -> None:
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

    perform(story)


def test_a_lost_agent_is_forgotten_once_all_that_it_ran_is_confirmed_dead(
    perform: Perform, monkeypatch: pytest.MonkeyPatch
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

    perform(story, lease_s=0.5)


def test_what_a_node_ran_is_dead_at_once_if_its_platform_has_seen_all_its_processes_end(perform: Perform) -> None:
    async def story(stage: Stage) -> None:
        (first,) = await PuppetAgent(stage.pool).begin()
        stage.pool.note_hang_up("default", "a", "first")
        stage.pool.note_dead("default", ["a"])
        (second,) = await PuppetAgent(stage.pool, "b").begin()
        assert second.trial == first.trial
        await until(lambda: stage.trials.dead == [(1, first.number)])

    perform(story)


def test_a_coordinator_that_is_started_again_also_takes_the_platforms_word(perform: Perform) -> None:
    async def story(stage: Stage) -> None:
        (first,) = await PuppetAgent(stage.pool).begin()
        await stage.restart()
        assert not stage.trials.ends
        stage.pool.note_dead("default", ["a"])
        await until(lambda: stage.trials.dead == [(1, first.number)])

    perform(story)


def test_an_agent_that_calls_again_is_not_the_node_that_has_ended(perform: Perform) -> None:
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

    perform(story)


def test_what_has_ended_on_a_node_is_not_given_to_its_next_agent(perform: Perform) -> None:
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

    perform(story, num_trials=2)


def test_a_new_incarnation_loses_what_the_one_before_had_and_is_given_it_again(perform: Perform) -> None:
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

    perform(story)


@pytest.mark.parametrize("how", ["restart", "leave"])
def test_an_assignment_is_not_given_to_an_agents_next_incarnation_if_the_coordinator_dies_before_its_loss_is_stored(
    perform: Perform, monkeypatch: pytest.MonkeyPatch, how: str
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

    perform(story)


def test_a_silent_agent_is_lost_and_must_end_what_it_ran_before_it_gets_more(perform: Perform) -> None:
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

    perform(story, num_trials=2)


def test_an_agent_that_hangs_up_is_lost_soon_and_not_if_it_calls_again(
    perform: Perform, monkeypatch: pytest.MonkeyPatch
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

    perform(story)


def test_an_agent_that_leaves_gives_all_back_and_is_not_listed_any_more(perform: Perform) -> None:
    async def story(stage: Stage) -> None:
        agent = PuppetAgent(stage.pool)
        await agent.begin()
        await stage.pool.leave("default", "a", wire.AgentLeave(incarnation="first", reason="asked"))
        await until(lambda: stage.trials.ends)
        assert stage.trials.ends[0][2].is_lost
        assert stage.pool.view("default").agents == []

    perform(story)


@pytest.mark.parametrize("state", ["enabled", "draining"])
def test_a_late_call_of_an_agent_that_has_left_does_not_bring_it_back(perform: Perform, state: str) -> None:
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

    perform(story)


def test_an_agent_that_returns_ends_all_that_it_had_of_a_trial_before_it_gets_anything(perform: Perform) -> None:
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

    perform(story)
