"""Trials that grow and shrink while they train, on real slots: the same bits, and nothing is trained twice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.command import until
from lab.elastic_trials import ELASTIC, released, single, until_ready, until_slots
from lab.experiment_stage import ADAPTIVE, FULL, ExperimentStage, Story, number_of
from lab.length import usual
from lab.processes import are_gone

LONG = 60  # batches, so that a further slot pays back


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """One trial on one slot."""
    with ExperimentStage(tmp_path_factory.mktemp("alone"), slots=1) as stage:
        _, story = stage.search(stage.write("alone", single(), **ELASTIC))
        yield story


def test_a_trial_takes_all_free_slots_with_the_same_bits(alone: Story, tmp_path: Path) -> None:
    with ExperimentStage(tmp_path, slots=3) as stage:
        stage.hold(1, 2)
        command = stage.create(stage.write("grows", single(), **ELASTIC))
        stage.wait_held(1, 2)
        until_slots(stage, number_of(command.said), 3)
        until_ready(stage, "e1-t1", 3)
        stage.let_on()
        assert stage.end_of(command)[1] == alone
        sizes = [len(pids) for _, pids in sorted(stage.workers(1).items())]
        assert sizes == sorted(sizes)  # a slot that is ready early joins before batch 2
        assert sizes[3:] == [3] * (FULL - 3)


def test_a_trial_shrinks_within_a_step_for_another_experiment_and_grows_back(tmp_path: Path) -> None:
    with ExperimentStage(tmp_path, slots=3) as stage:
        stage.hold(1, 2)
        first = stage.create(stage.write("first", single(LONG), **ELASTIC))
        stage.wait_held(1, 2)
        until_slots(stage, 1, 3)
        until_ready(stage, "e1-t1", 3)
        stage.hold(1, 5)
        stage.let_on(2)
        stage.wait_held(1, 5)

        second = stage.create(stage.write("second", single(3), **ELASTIC))
        until(lambda: released(stage), stage.whole_story)
        stage.hold(1, 7)
        stage.let_on(5)
        _, short = stage.end_of(second)
        stage.wait_held(1, 7)
        until_slots(stage, 1, 3)
        until_ready(stage, "e1-t1", 3)
        stage.let_on(7)
        story = stage.end_of(first)[1]
        assert {each["length"] for each in short.values()} == {3}
        assert [each.num_restarts for number in (1, 2) for each in stage.trials.trials(number)] == [0, 0]
        sizes = [len(pids) for _, pids in sorted(stage.workers(1).items())]
        assert max(sizes[:7]) == max(sizes[7:]) == 3
        on_one_slot = ELASTIC | {"resources": ELASTIC["resources"] | {"max_slots": 1}}
        assert stage.search(stage.write("again", single(LONG), **on_one_slot))[1] == story


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Story]:
    """An undisturbed search on one slot."""
    with ExperimentStage(tmp_path_factory.mktemp("searched"), slots=1) as stage:
        return stage.search(stage.write("searched", ADAPTIVE, **ELASTIC))


def held(stage: ExperimentStage, trial: int, batch: int) -> int:
    """The process that is held there now, not one that has been killed."""
    pid = stage.wait_held(trial, batch)
    return stage.wait_held(trial, batch, but=pid) if are_gone([pid]) else pid


@pytest.mark.parametrize(("slots", "seed"), usual([(1, 1), (3, 2)], long=[(1, 1), (3, 2), (3, 3)]))
def test_a_search_on_any_number_of_slots_with_kills_has_the_same_winner_and_bits(
    slots: int, seed: int, searched: tuple[int, Story], tmp_path: Path
) -> None:
    """At some batches, a worker, a trial's node, the pool's agent or the coordinator is killed."""
    chance = random.Random(seed)
    with ExperimentStage(tmp_path, slots=slots) as stage:
        places = sorted({(chance.randint(1, 6), chance.randint(1, 2)) for _ in range(4)})
        for trial, batch in places:
            stage.hold(trial, batch)
        command = stage.create(stage.write("kills", ADAPTIVE, **{**ELASTIC, "restarts": 9}))
        for kind, (trial, batch) in zip(chance.sample(["worker", "node", "join", "serve"], 4), places, strict=False):
            worker = held(stage, trial, batch)
            # All nodes of the trial: it may have grown to more.
            victims = [worker] if kind == "worker" else stage.nodes_of(trial) if kind == "node" else [stage.part(kind)]
            ending = [] if kind == "serve" else [worker] if kind != "join" else stage.held_pids()
            stage.kill(*victims)
            until(lambda gone=ending: are_gone(gone), stage.whole_story)  # else one may be taken for its successor
            (stage.gates / f"gate-{trial}-{batch}").unlink()
        assert stage.end_of(command) == searched


def test_a_gang_starts_only_with_all_of_its_slots_and_has_the_same_bits(alone: Story, tmp_path: Path) -> None:
    gang = {**ELASTIC, "resources": {"slots_per_trial": 4, "min_slots": 2}}
    with ExperimentStage(tmp_path, slots=2) as stage:
        assert stage.search(stage.write("gang", single(), **gang))[1] == alone
        assert {len(pids) for pids in stage.workers(1).values()} == {2}


def test_the_loss_of_a_node_is_no_restart_and_the_others_train_on(alone: Story, tmp_path: Path) -> None:
    with ExperimentStage(tmp_path, slots=3) as stage:
        stage.hold(1, 2)
        command = stage.create(stage.write("lost", single(), **ELASTIC))
        stage.wait_held(1, 2)
        until_slots(stage, 1, 3)
        until_ready(stage, "e1-t1", 3)
        stage.hold(1, 5)
        stage.let_on(2)
        stage.wait_held(1, 5)
        stage.kill(stage.part("join"))  # with all that it runs, so another agent continues from the checkpoint
        stage.let_on()
        assert stage.end_of(command)[1] == alone
        assert [each.num_restarts for each in stage.trials.trials(1)] == [0]
