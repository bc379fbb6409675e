"""Experiments on a store that fails, before or after it has kept a change: the same search, once, none forgotten."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from everstep import wire
from everstep.coordinator.experiments import experiments
from everstep.coordinator.experiments.seam import NoSlots
from everstep.coordinator.service import Service
from everstep.coordinator.store.store import Store
from everstep.errors import TemporaryError
from everstep.search.events import Suggested
from everstep.storage.database import StoreError
from lab.experiments import spec

DEADLINE_S = 60.0


class FailingStore(Store):
    """Fails at the write with this number, counted from when it was set."""

    fails_at, is_before = 0, False

    async def write(self, change):
        self.fails_at -= 1
        if self.fails_at == 0 and self.is_before:
            raise StoreError("not kept")
        kept = await super().write(change)
        if self.fails_at == 0:
            raise StoreError("kept, but the answer was lost")
        return kept


class Stage:
    def __init__(self, store):
        self.store, self.service = store, Service(store)

    async def create(self, *given, **named):
        wanted = spec(*given, **named)
        return (await stubbornly(lambda: self.service.experiment_calls.create(wanted))).experiment

    async def result(self, number, trial, length):
        message = wire.TrialResult(length=length, metric=trial * 7 % 5 + 1 / length)
        return await stubbornly(lambda: self.service.trials.result(wire.trial_job(number, trial), message))

    async def trials(self, number):
        return (await self.service.experiment_calls.trials(number, 0, 100, "trial")).trials

    async def events(self, number):
        found = await self.service.experiment_calls.events(number, 0, 1000, is_held=False)
        return [(each.number, each.event) for each in found.events]

    async def until(self, is_so):
        async with asyncio.timeout(DEADLINE_S):
            while not is_so():
                await asyncio.sleep(0.01)

    def is_wanting(self, number):
        return any(each.experiment == number for each in self.service.experiments.candidates())


async def stubbornly(call):
    """As clients do."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await call()
            except TemporaryError:
                await asyncio.sleep(0.01)


@pytest.fixture
def play(store_url, monkeypatch):
    monkeypatch.setattr(experiments, "STORE_PAUSE_S", 0.01)

    @asynccontextmanager
    async def staged():
        stage = Stage(FailingStore(store_url))
        await stage.service.experiments.start(NoSlots())
        try:
            yield stage
        finally:
            stage.service.let_go()
            await stage.service.close()

    def run(story):
        async def begin():
            async with staged() as stage:
                await story(stage)

        asyncio.run(begin())

    return run


@pytest.mark.parametrize("is_before", [True, False])
def test_calls_that_wait_while_a_write_fails_change_nothing_that_is_not_kept(play, is_before):
    async def search(stage, fails_at):
        number = await stage.create("async_halving", max_trials=4, num_rungs=2, divisor=2, max_concurrent_trials=4)
        stage.store.fails_at, stage.store.is_before = fails_at, is_before
        await asyncio.gather(*(stage.result(number, trial, 32) for trial in (1, 2, 3, 4)))
        for each in [each for each in await stage.trials(number) if each.state not in wire.ENDED]:
            await stage.result(number, each.trial, 64)
        seen = await stage.events(number)
        assert [place for place, _ in seen] == list(range(1, len(seen) + 1))
        story = [(each.trial, each.state, each.length, each.best) for each in await stage.trials(number)]
        return story, sorted(str(event) for _, event in seen)

    async def story(stage):
        quiet = await search(stage, 0)
        assert [state for _, state, *_ in quiet[0]] == ["COMPLETED"] * 4
        for fails_at in range(1, 12):
            assert await search(stage, fails_at) == quiet, f"write {fails_at} failed"

    play(story)


def test_an_experiment_whose_creation_was_kept_but_not_answered_is_neither_forgotten_nor_replaced(play):
    async def story(stage):
        stage.store.fails_at = 1
        wanted, other = spec(max_trials=2), spec(max_trials=1)
        with pytest.raises(StoreError):
            await stage.service.experiment_calls.create(wanted)
        first = await stage.service.experiment_calls.create(wanted)
        second = await stage.service.experiment_calls.create(other)
        assert first.experiment != second.experiment
        assert len(await stage.trials(first.experiment)) == 2
        assert len(await stage.trials(second.experiment)) == 1
        await stage.until(lambda: stage.is_wanting(first.experiment) and stage.is_wanting(second.experiment))

    play(story)


class Model:
    """Answers as Optuna's process does."""

    def __init__(self):
        self.asked = []

    async def suggest(self, spec, config, ask):
        self.asked.append(ask.cohort)
        return Suggested(cohort=ask.cohort, hparams={str(number): {"lr": 0.1} for number in ask.trials})

    def close(self): ...


@pytest.mark.parametrize("is_before", [True, False])
def test_a_suggestion_that_could_not_be_kept_is_asked_for_again_and_the_coordinator_stays(play, is_before):
    async def story(stage):
        stage.service.experiments._suggester = model = Model()
        stage.store.fails_at, stage.store.is_before = 2, is_before  # 1: the creation
        number = await stage.create("tpe", max_trials=2, hyperparameters={"lr": {"log": [1e-4, 1e-1]}})
        await stage.until(lambda: stage.is_wanting(number))
        assert [each.hparams for each in await stage.trials(number)] == [{"lr": 0.1}] * 2
        assert model.asked == ([0, 0] if is_before else [0])

    play(story)
