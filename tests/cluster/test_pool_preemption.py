"""Urgent trials take the slots of others, by real processes: those shrink first, are parked then, and lose nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.command import until
from lab.elastic_trials import until_ready
from lab.experiment_stage import FULL, LOSS, ExperimentStage, Story
from lab.processes import are_gone

HELD = 5  # a batch that urgent trials do not reach
GROWN = 3  # the batch at which a trial waits until it has all of its slots
SHORT = 3  # of urgent trials
CHANGES = 3  # of a trial's size: it grows, shrinks or is parked, and grows again


def random(num_trials: int, batches: int = FULL) -> dict[str, Any]:
    return {"name": "random", "metric": LOSS, "max_trials": num_trials, "max_length": {"batches": batches}}


def usual(**resources: Any) -> dict[str, Any]:
    return {"resources": {"slots_per_trial": 2, **resources}, "restarts": 0, "min_checkpoint_period": {"batches": 1}}


URGENT = {"resources": {"slots_per_trial": 1, "priority": 1}, "restarts": 0}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Two trials, undisturbed, one after the other."""
    with ExperimentStage(tmp_path_factory.mktemp("alone"), slots=1) as stage:
        yield stage.search(stage.write("alone", random(2), **usual()))[1]


def states(stage: ExperimentStage, experiment: int) -> dict[int, list[str]]:
    """Of the slots that each trial holds."""
    found: dict[int, list[str]] = {}
    for each in stage.trials.held():
        if each.experiment == experiment:
            found.setdefault(each.trial, []).append(each.state)
    return {trial: sorted(its) for trial, its in sorted(found.items())}


def begun_again(stage: ExperimentStage, trial: int) -> set[int]:
    """The batches that the trial has begun more than once; of those that no urgent trial has."""
    rows = (stage.gates / f"trained-{trial}").read_text().split()
    found = Counter(int(each) for each in rows if int(each) >= SHORT)
    assert found.keys() == {*range(SHORT, FULL)}
    return {batch for batch, number in found.items() if number > 2}


def test_others_shrink_before_the_newest_of_them_is_parked_and_nothing_is_lost(alone: Story, tmp_path: Path) -> None:
    with ExperimentStage(tmp_path, slots=4) as stage:
        for trial in (1, 2):
            stage.hold(trial, GROWN)
        first = stage.create(stage.write("usual", random(2), **usual()))
        for trial in (1, 2):
            stage.wait_held(trial, GROWN)
        for trial in (1, 2):
            until_ready(stage, f"e1-t{trial}", 2)
        for trial in (1, 2):
            stage.hold(trial, HELD)
        stage.let_on(GROWN)
        until(lambda: all(len(stage.workers(trial)[HELD]) == 2 for trial in (1, 2)), stage.whole_story)

        urgent = stage.create(stage.write("urgent", random(3, SHORT), **URGENT))
        asked = {1: ["given", "parking"], 2: ["parking", "parking"]}
        until(lambda: states(stage, 1) == asked, lambda: f"{states(stage, 1)}\n{stage.whole_story()}")
        stage.let_on()
        assert len(stage.end_of(urgent)[1]) == 3
        assert stage.end_of(first)[1] == alone
        for trial in (1, 2):
            assert len(begun_again(stage, trial)) <= CHANGES, "at most the step in which a worker left or came"
        assert [each.num_restarts for each in stage.trials.trials(1)] == [0, 0]


@pytest.mark.parametrize("slots", [1, 2])
def test_a_worker_that_does_not_leave_in_time_is_killed_and_only_its_step_is_lost(
    slots: int, alone: Story, tmp_path: Path
) -> None:
    """It is stuck in a step. With one slot, the trial continues from its checkpoint; with two, in its other process."""
    with ExperimentStage(tmp_path, slots=slots) as stage:
        stage.hold(1, GROWN)
        one_by_one = {**random(2), "max_concurrent_trials": 1}
        first = stage.create(stage.write("usual", one_by_one, **usual(preemption_timeout="1s")))
        stage.wait_held(1, GROWN)
        until_ready(stage, "e1-t1", slots)
        stage.hold(1, HELD)
        stage.let_on(GROWN)
        until(lambda: len(stage.workers(1)[HELD]) == slots, stage.whole_story)
        stuck = stage.workers(1)[HELD]

        urgent = stage.create(stage.write("urgent", random(1, SHORT), **URGENT))
        until(lambda: any(are_gone([each]) for each in stuck), stage.whole_story)
        stage.let_on()
        stage.end_of(urgent)
        assert stage.end_of(first)[1] == alone
        assert begun_again(stage, 1) <= {HELD} if slots == 1 else len(begun_again(stage, 1)) <= CHANGES
        assert [each.num_restarts for each in stage.trials.trials(1)] == [0, 0]
