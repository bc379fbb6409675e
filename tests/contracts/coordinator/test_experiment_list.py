"""The list of experiments, on each store: a page reads only what it shows, and the search knows all letters."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import delete, update

from everstep import wire
from everstep.coordinator.service import Service
from everstep.coordinator.store.store import Store
from everstep.coordinator.store.tables import EXPERIMENTS
from lab.experiments import spec


class Stage:
    def __init__(self, store: Store) -> None:
        self.store, self.service = store, Service(store)

    async def create(self, **given: object) -> int:
        view = await self.service.experiment_calls.create(spec("random", max_trials=1, **given))
        return view.experiment

    async def act(self, number: int, action: str) -> None:
        await self.service.experiment_calls.act(number, wire.ExperimentAction(action=action))

    async def find(
        self, start: int = 0, limit: int = 100, *, search: str = "", states: tuple[str, ...] = (), is_archived=False
    ) -> tuple[list[int], int]:
        """The numbers of the page, and of all."""
        found = await self.service.experiment_listing.find(
            start, limit, search=search, states=list(states), is_archived=is_archived
        )
        return [each.experiment for each in found.experiments], found.num_found

    async def ordered(self, **asked: Any) -> tuple[list[int], dict[str, list[Any]]]:
        """The numbers of all that are chosen, and the values of their columns."""
        found = await self.service.experiment_listing.find(0, 100, **asked)
        return [each.experiment for each in found.experiments], found.values


@pytest.fixture
def play(store_url: str) -> Callable[[Callable[[Stage], Awaitable[None]]], None]:
    def run(story: Callable[[Stage], Awaitable[None]]) -> None:
        async def whole() -> None:
            stage = Stage(Store(store_url))
            await stage.service.experiments.start()
            try:
                await story(stage)
            finally:
                stage.service.let_go()
                await stage.service.close()

        asyncio.run(whole())

    return run


def test_a_page_reads_only_the_experiments_that_it_shows(play) -> None:
    async def story(stage: Stage) -> None:
        other, first, second, third = [await stage.create() for _ in range(4)]
        is_other = EXPERIMENTS.c.number == other
        unreadable = update(EXPERIMENTS).where(is_other).values(spec="{}")
        await stage.store.write(lambda connection: connection.execute(unreadable))

        assert await stage.find(limit=1) == ([third], 4)
        assert await stage.find(1, 2) == ([second, first], 4)
        assert await stage.find(search=str(second), states=(wire.ACTIVE,)) == ([second], 1)

        await stage.act(first, "pause")
        assert await stage.find(states=(wire.PAUSED,)) == ([first], 1)
        await stage.act(first, "kill")
        await stage.act(first, "archive")
        assert await stage.find(limit=2) == ([third, second], 3)
        assert await stage.find(states=(wire.CANCELED,)) == ([], 0)
        assert await stage.find(states=(wire.CANCELED,), is_archived=True) == ([first], 1)
        await stage.store.write(lambda connection: connection.execute(delete(EXPERIMENTS).where(is_other)))

    play(story)


def test_a_search_finds_names_labels_and_descriptions_in_any_case_and_script(play) -> None:
    async def story(stage: Stage) -> None:
        by_name = await stage.create(name="ÜBUNG 100% done")
        by_label = await stage.create(labels=["übung", "other"])
        by_text = await stage.create(description='my "Übung"')
        await stage.create(name="else", labels=["100 percent"])

        assert await stage.find(search="übung") == ([by_text, by_label, by_name], 3)
        assert await stage.find(1, 1, search="Übung") == ([by_label], 3)
        assert await stage.find(search="100%") == ([by_name], 1)
        assert await stage.find(search='"') == ([by_text], 1)

    play(story)
