"""Processes that die while a trial grows or shrinks: the same bits, and no slot is given twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep import wire
from lab.command import Command, until
from lab.elastic_trials import (
    ELASTIC,
    assert_slots_were_fenced,
    job_of,
    released,
    single,
    until_ready,
    until_slots,
)
from lab.experiment_stage import ExperimentStage, Story

HARDY: dict[str, Any] = {**ELASTIC, "restarts": 9}
JOB = "e1-t1"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """One trial on one slot."""
    with ExperimentStage(tmp_path_factory.mktemp("alone"), slots=1) as stage:
        yield stage.search(stage.write("alone", single(), **HARDY))[1]


def grow(stage: ExperimentStage, batch: int, slots: int) -> Command:
    """A trial that waits at a batch, with newcomers that stand ready on all slots but the first."""
    stage.hold(1, batch)
    # Else they may join before this batch.
    alone_at_first = HARDY | {"resources": HARDY["resources"] | {"max_slots": 1}}
    command = stage.create(stage.write("elastic", single(), **alone_at_first))
    stage.wait_held(1, batch)
    with stage.coordinator() as coordinator:
        coordinator.change(1, wire.ExperimentChange(max_slots=0))
    until_slots(stage, 1, slots)
    until_ready(stage, JOB, slots)
    return command


def members(stage: ExperimentStage) -> list[wire.WorkerView]:
    """By rank."""
    found = [each for each in job_of(stage, JOB).workers if each.status == "member"]
    return sorted(found, key=lambda each: each.rank or 0)


def shrink(stage: ExperimentStage) -> tuple[Command, Command]:
    """A trial on three slots that waits at a batch, while a worker must leave for another experiment."""
    command = grow(stage, 2, 3)
    stage.hold(1, 5)
    stage.let_on(2)
    stage.wait_held(1, 5)
    until(lambda: len(members(stage)) == 3, stage.whole_story)
    second = stage.create(stage.write("second", single(3), **HARDY))
    until(lambda: released(stage), stage.whole_story)
    return command, second


def test_a_newcomer_that_dies_while_it_joins(alone: Story, tmp_path: Path) -> None:
    with ExperimentStage(tmp_path, slots=2) as stage:
        command = grow(stage, 2, 2)
        (newcomer,) = [each.pid for each in job_of(stage, JOB).workers if each.status == "waiting"]
        stage.kill(newcomer)
        stage.let_on()
        assert stage.end_of(command)[1] == alone
        assert_slots_were_fenced(stage.files.coordinator.store)


@pytest.mark.parametrize("victim", ["leaver", "leader", "both"])
def test_a_death_while_a_trial_shrinks(victim: str, alone: Story, tmp_path: Path) -> None:
    """Of the worker that leaves, of the giver's first worker, or of both."""
    with ExperimentStage(tmp_path, slots=3) as stage:
        command, second = shrink(stage)
        leader, *others = members(stage)
        (leaver,) = [each for each in others if each.agent.endswith(f"-{released(stage)[0]}")]
        victims = {"leaver": [leaver], "leader": [leader], "both": [leaver, leader]}[victim]
        stage.kill(*(each.pid for each in victims))
        stage.let_on()
        assert stage.end_of(command)[1] == alone
        assert {each["length"] for each in stage.end_of(second)[1].values()} == {3}
        restarts = [each.num_restarts for number in (1, 2) for each in stage.trials.trials(number)]
        assert restarts == [int(leader in victims), 0], "who was asked to leave may die"
        assert_slots_were_fenced(stage.files.coordinator.store)
