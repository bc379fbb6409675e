"""kill -9 the coordinator of a busy pool at random moments: no assignment twice, no trial lost, no second winner.

Nodes, trials and people are nothing but their calls. After each kill, the store is compared with all that was told,
and the next coordinator has a place for each trial."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.retry import patiently
from lab.command import until
from lab.frail_coordinator import FrailCoordinator
from lab.length import usual
from lab.pool_audit import Audit
from lab.pool_load import SEARCHES, BusyNode, Heard, People

NUM_KILLS = usual(20, long=250)  # on each store
NUM_NODES = 3
MOST_ANSWERS = 40  # between two kills
LONGEST_S = 0.03  # from an answer to a kill, so that any instruction may be the last


class Stage:
    def __init__(self, folder: Path, store: str, port: int, seed: int) -> None:
        self.coordinator = FrailCoordinator(folder, store, port)
        url, token = self.coordinator.url, self.coordinator.token
        self.heard = Heard()
        self.people = People(url, token, self.heard, seed)
        nodes = [BusyNode(url, token, f"n{place}", self.heard, seed) for place in range(NUM_NODES)]
        self._threads: list[threading.Thread] = [self.people, *nodes]
        self._client = Coordinator(url, token, "none")
        self.audit = Audit(store, self.heard)

    def start(self) -> None:
        for each in self._threads:
            each.start()

    def close(self) -> None:
        self.heard.is_over.set()
        for each in self._threads:
            each.join(60)
        self._client.close()
        self.coordinator.close()

    def wait_for_places(self) -> None:
        """Each trial that is to train has slots, or a place in the queue."""

        def lost() -> list[wire.TrialView]:
            self.heard.check()
            before, trials, after = self._queued(), self._training(), self._queued()
            return [each for each in trials if (each.experiment, each.trial) not in before | after]

        until(lambda: not lost(), lambda: f"these trials have no place: {lost()}")

    def _queued(self) -> set[tuple[int, int]]:
        queue = patiently(lambda: self._client.queue("default"), 60.0)
        return {(each.experiment, trial.trial) for each in queue.entries for trial in each.waiting}

    def _training(self) -> list[wire.TrialView]:
        """Without a slot."""
        active = patiently(lambda: self._client.experiments(state=wire.ACTIVE, limit=100), 60.0).experiments
        lists = [patiently(lambda each=each: self._client.trials(each.experiment), 60.0) for each in active]
        trials = [trial for found in lists for trial in found.trials]
        return [each for each in trials if not each.num_slots and each.state not in (*wire.ENDED, "WAITING")]

    def finish(self) -> None:
        """No more kills: all that was begun comes to its end, and with it one more search of each kind."""
        self.heard.check()
        self.people.is_enough.set()
        for search in SEARCHES:
            self.people.create(search)
        until(self._is_over, lambda: f"{[self._client.experiment(each) for each in self.heard.experiments]}")

    def _is_over(self) -> bool:
        self.heard.check()
        return all(self._client.experiment(each).state in wire.ENDED for each in self.heard.experiments)


@pytest.fixture
def seed() -> int:
    found = random.SystemRandom().randrange(1 << 32)
    print(f"seed: {found}")  # shown if the story fails
    return found


@pytest.fixture
def stage(tmp_path: Path, store_url: str, held_port: int, seed: int) -> Iterator[Stage]:
    stage = Stage(tmp_path, store_url, held_port, seed)
    yield stage
    stage.close()
    assert "Traceback" not in stage.coordinator.log_file.read_text(), stage.coordinator.log_file.read_text()


@pytest.mark.timeout(usual(600, long=3600))
def test_a_pools_coordinator_that_is_killed_at_any_moment_gives_nothing_twice_and_forgets_nothing(
    stage: Stage, seed: int
) -> None:
    chance = random.Random(seed)
    stage.start()
    for _ in range(NUM_KILLS):
        stage.heard.wait_for_answers(chance.randint(1, MOST_ANSWERS))
        threading.Event().wait(chance.uniform(0, LONGEST_S))  # a random moment
        stage.coordinator.kill()
        stage.audit.check()
        stage.coordinator.start()
        stage.wait_for_places()
    stage.finish()
    stage.audit.check()
    stage.heard.check()
    for search in SEARCHES:
        winners = stage.audit.winners(search)
        assert len(set(winners.values())) == 1, f"equal searches have several winners: {winners}"
    states = {each.experiment: each.state for each in stage._client.experiments(limit=1000).experiments}
    assert {states[each] for each in stage.heard.experiments.keys() - stage.heard.killed} == {wire.COMPLETED}
