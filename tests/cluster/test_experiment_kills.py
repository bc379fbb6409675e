"""An adaptive search has the same trials, decisions, winner and weights on 1, 2 and 3 slots, whatever is killed. And
what was trained is not trained again."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from lab.command import Command, until
from lab.experiment_stage import ADAPTIVE, FULL, RUNG, ExperimentStage, Story, number_of
from lab.processes import processes_of

Told = tuple[int, Story]  # the winner, and all trials
PROMOTED = 4  # one of the two
ALL = {1, 2, 3, 4, 5, 6}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Told:
    with ExperimentStage(tmp_path_factory.mktemp("undisturbed"), slots=2) as stage:
        told = stage.search(stage.write("adaptive", ADAPTIVE))
        assert stage.trained_once(told[1]) == ALL
        return told


def test_it_cuts_four_trials_promotes_two_and_does_not_choose_the_first(undisturbed: Told) -> None:
    winner, story = undisturbed
    assert Counter(each["length"] for each in story.values()) == {RUNG: 4, FULL: 2}
    assert {each["state"] for each in story.values()} == {"COMPLETED"}
    assert story[1]["length"] == RUNG
    assert winner != 1 and winner == min(story, key=lambda trial: story[trial]["loss"])
    assert story[PROMOTED]["length"] == FULL
    assert sum(len(each["digests"]) for each in story.values()) == 8
    assert len({digest for each in story.values() for digest in each["digests"].values()}) == 8


def search_while_first_is_last(stage: ExperimentStage, order: str) -> Told:
    """The first trial waits until all others have a result."""
    stage.hold(1, 1)
    command = stage.create(stage.write(order, {**ADAPTIVE, "order": order}))
    stage.wait_held(1, 1)
    number = number_of(command.said)
    until(lambda: all(each.length >= RUNG for each in stage.trials.trials(number)[1:]), stage.whole_story)
    stage.let_on()
    return stage.end_of(command)


def test_who_comes_last_changes_nothing_but_with_order_arrival_it_does(undisturbed: Told, tmp_path: Path) -> None:
    """The latter shows that this comparison can fail."""
    with ExperimentStage(tmp_path, slots=3) as stage:
        assert search_while_first_is_last(stage, "exact") == undisturbed
        _, late = search_while_first_is_last(stage, "arrival")
    (tmp_path / "alone").mkdir()
    with ExperimentStage(tmp_path / "alone", slots=1) as stage:
        _, early = stage.search(stage.write("arrival", {**ADAPTIVE, "order": "arrival"}))
    assert (late[1]["length"], early[1]["length"]) == (RUNG, FULL), "the first to come always continues"
    assert late != early
    for trial in late:
        assert late[trial]["digests"][RUNG] == early[trial]["digests"][RUNG], "only decisions differ"


def test_a_killed_worker(undisturbed: Told, tmp_path: Path) -> None:
    with ExperimentStage(tmp_path, slots=2) as stage:
        stage.hold(PROMOTED, 5)
        command = stage.create(stage.write("adaptive", ADAPTIVE))
        stage.kill(stage.wait_held(PROMOTED, 5))
        stage.let_on()
        assert stage.end_of(command) == undisturbed
        assert [each.num_restarts for each in stage.trials.trials(1)] == [0, 0, 0, 1, 0, 0]
        assert stage.trained_once(undisturbed[1]) >= ALL - {PROMOTED}


def test_all_trials_killed_their_workers_their_nodes_or_both(undisturbed: Told, tmp_path: Path) -> None:
    with ExperimentStage(tmp_path, slots=3) as stage:
        for trial in (1, 2, 3):
            stage.hold(trial, 2)
        command = stage.create(stage.write("adaptive", ADAPTIVE))
        workers = [stage.wait_held(trial, 2) for trial in (1, 2, 3)]
        nodes = [node for trial in (1, 2, 3) for node in stage.nodes_of(trial)]
        stage.kill(workers[0], nodes[1], nodes[2], workers[2])
        stage.let_on()
        assert stage.end_of(command) == undisturbed
        assert stage.trained_once(undisturbed[1]) >= ALL - {1, 2, 3}


def test_a_killed_coordinator(undisturbed: Told, tmp_path: Path) -> None:
    with ExperimentStage(tmp_path, slots=1) as stage:
        stage.hold(PROMOTED, 5)
        command = stage.create(stage.write("adaptive", ADAPTIVE))
        stage.wait_held(PROMOTED, 5)
        stage.kill(stage.part("serve"))
        stage.let_on()
        assert stage.end_of(command) == undisturbed
        assert {each.num_restarts for each in stage.trials.trials(1)} == {0}
        assert stage.trained_once(undisturbed[1]) == ALL


def cut(told: Told) -> set[int]:
    """The trials that were over when the others continued."""
    return {trial for trial, each in told[1].items() if each["length"] == RUNG}


def test_every_process_killed_and_the_command_given_again(undisturbed: Told, tmp_path: Path) -> None:
    with ExperimentStage(tmp_path, slots=3) as stage:
        file = stage.write("adaptive", ADAPTIVE)
        stage.hold(PROMOTED, 5)
        command = stage.create(file)
        worker = stage.wait_held(PROMOTED, 5)
        everything = [int(each.partition(":")[0]) for each in processes_of(str(tmp_path / "home"))]
        assert {stage.pid, command.process.pid} <= set(everything)
        stage.kill(*everything, worker)
        stage.let_on()
        command = stage.create(file)
        assert number_of(command.said) == 1 and "Continuing" in command.said
        assert stage.end_of(command) == undisturbed
        assert {each.num_restarts for each in stage.trials.trials(1)} == {0}
        assert stage.trained_once(undisturbed[1]) >= cut(undisturbed)


def interrupt(stage: ExperimentStage, command: Command) -> None:
    """Ctrl-C while a trial is held."""
    command.signal(signal.SIGINT)
    stage.until_paused(1)
    stage.let_on()
    assert command.exit_code() == 128 + signal.SIGINT


def test_ctrl_c_pauses_and_the_same_command_and_activate_continue(undisturbed: Told, tmp_path: Path) -> None:
    with ExperimentStage(tmp_path, slots=1) as stage:
        file = stage.write("adaptive", ADAPTIVE)
        stage.hold(2, 2)
        command = stage.create(file)
        stage.wait_held(2, 2)
        interrupt(stage, command)
        assert (stage.view(1).state, stage.trials.held()) == ("PAUSED", [])

        stage.hold(PROMOTED, 5)
        command = stage.create(file)
        assert "Continuing" in command.said
        stage.wait_held(PROMOTED, 5)
        interrupt(stage, command)

        stage.type("e", "activate", "1")
        stage.trials.wait_state(1, "COMPLETED", "ERROR")
        assert (stage.winner(1), stage.story(1)) == undisturbed
        assert {each.num_restarts for each in stage.trials.trials(1)} == {0}
        assert stage.trained_once(undisturbed[1]) == ALL, "exactly where it was paused"
