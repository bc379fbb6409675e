"""A pool of nodes with networks of their own: whatever dies, comes and goes, a search has the same winner and bits."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.command import until
from lab.experiment_stage import ADAPTIVE, ExperimentStage, Story
from lab.length import usual
from lab.pool_hosts import KINDS, Harm, PoolHosts, needs_hosts, play

pytestmark = needs_hosts

ELASTIC: dict[str, Any] = {"resources": {"slots_per_trial": 4}, "restarts": 9}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Story]]:
    """The search on one slot."""
    with ExperimentStage(tmp_path_factory.mktemp("undisturbed"), slots=1) as stage:
        yield stage.search(stage.write("search", ADAPTIVE, **ELASTIC))


@pytest.mark.parametrize("slots", usual((1, 3), long=(1, 2, 3, 4, 5)))
@pytest.mark.parametrize("seed", range(usual(1, long=3)))
def test_a_search_with_kills_and_nodes_that_come_and_go_is_the_same_on_each_size(
    slots: int, seed: int, undisturbed: tuple[int, Story], tmp_path: Path
) -> None:
    chance = random.Random(100 * slots + seed)
    # A trial is held in its first rung; in the order of trials, so that no gate waits for a trial that comes later.
    places = [(trial, chance.randint(1, 2)) for trial in range(1, 1 + len(KINDS))]

    def story(stage: PoolHosts) -> tuple[int, Story]:
        for trial, batch in places:
            stage.hold(trial, batch)
        for host in range(1, slots + 1):
            stage.join(f"h{host}")
        number = stage.create(stage.write("search", ADAPTIVE, **ELASTIC))
        harm = Harm(stage, chance)
        for kind, (trial, batch) in zip(chance.sample(KINDS, len(KINDS)), places, strict=True):
            harm.do(kind, trial, batch)
        return stage.end_of(number)

    assert play(tmp_path, slots + 1, story) == undisturbed


def test_a_pool_that_shrinks_to_nothing_and_grows_back_continues_its_experiments(
    undisturbed: tuple[int, Story], tmp_path: Path
) -> None:
    def story(stage: PoolHosts) -> tuple[int, Story]:
        stage.hold(1, 2)
        stage.join("h1")
        stage.join("h2")
        number = stage.create(stage.write("search", ADAPTIVE, **ELASTIC))
        stage.wait_held(1, 2)
        stage.drain("h1")
        stage.crash("h2")
        stage.let_on()
        assert stage.agents["h1"].exit_code() == 0
        until(lambda: not (stage.present or stage.trials.held()), lambda: f"{stage.trials.pool()}")
        assert stage.trials.pool().num_slots == 0
        assert stage.view(number).state == "ACTIVE"
        stage.restart_coordinator()
        for name in ("h1", "h2"):
            stage.join(name, slots=2)
        told = stage.end_of(number)
        assert [each.num_restarts for each in stage.trials.trials(number)] == [0] * 6
        return told

    assert play(tmp_path, 2, story) == undisturbed
