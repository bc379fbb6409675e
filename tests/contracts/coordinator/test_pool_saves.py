"""The pool at the coordinator, on each store: changes whose saves fail, come late, or are shared by several calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from everstep import wire
from everstep.storage.database import StoreError
from lab.pool_puppets import Perform, PuppetAgent, Stage, candidate, let_others_run


def test_a_save_that_fails_late_does_not_bring_back_what_another_has_replaced_meanwhile(
    perform: Perform, monkeypatch: pytest.MonkeyPatch
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

    perform(story)


def test_a_call_that_repeats_a_change_returns_when_the_save_under_way_has_stored_it(
    perform: Perform, monkeypatch: pytest.MonkeyPatch
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

    perform(story)


def test_a_call_whose_change_another_call_failed_to_store_stores_it_itself(
    perform: Perform, monkeypatch: pytest.MonkeyPatch
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

    perform(story)
