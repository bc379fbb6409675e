"""Searches by the command that people type, on this machine: grid and random, every kind of script, failures, TPE."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.command import run, until
from lab.experiment_stage import LOSS, ExperimentStage, number_of
from lab.processes import are_gone

UNIT = {"type": "double", "minval": 0.0, "maxval": 1.0}
LOOP = {"lr": {"log": [1e-4, 1.0]}}
# Four trials train to 3 batches; the best one continues to 9.
HALVING: dict[str, Any] = {
    "name": "async_halving",
    "metric": LOSS,
    "max_trials": 4,
    "max_length": {"batches": 9},
    "divisor": 3,
    "num_rungs": 2,
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExperimentStage]:
    with ExperimentStage(tmp_path_factory.mktemp("experiments"), slots=2) as made:
        yield made


def random(max_trials: int) -> dict[str, Any]:
    return {"name": "random", "metric": LOSS, "max_trials": max_trials}


def test_a_grid_on_images_by_a_class_without_a_script(stage: ExperimentStage) -> None:
    grid = {"name": "grid", "metric": LOSS, "max_length": {"batches": 2}}
    space = {"global_batch_size": 8, "lr": {"choice": [0.01, 0.1]}, "hidden": {"choice": [4, 8]}}
    winner, story = stage.search(stage.write("grid", grid, entrypoint="model_def:ImageTrial", hyperparameters=space))
    assert len(story) == len({(each["hparams"]["lr"], each["hparams"]["hidden"]) for each in story.values()}) == 4
    assert {each["length"] for each in story.values()} == {2}
    assert winner == min(story, key=lambda trial: story[trial]["loss"])


def test_a_random_search_on_images_ends_with_the_best_and_how_to_load_it(stage: ExperimentStage) -> None:
    file = stage.write("random", {**random(3), "max_length": {"batches": 2}})
    said = stage.create(file).finish()
    number = number_of(said)
    story, winner = stage.story(number), stage.winner(number)
    assert len({each["hparams"]["lr"] for each in story.values()}) == 3
    assert winner == min(story, key=lambda trial: story[trial]["loss"])
    assert re.search(rf"^best: trial {winner}, {LOSS} ", said, re.MULTILINE)
    best = stage.view(number).best
    assert best is not None and f"checkpoint: {best.checkpoint}" in said
    loading = said.partition("to load it in Python:\n")[2].partition("everstep: ")[0]
    assert loading.count("(path)") == 2
    done = run(sys.executable, "-c", loading, folder=stage.folder, **stage.env)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("way", ["native", "controller"])
def test_a_loop_of_the_scripts_own(stage: ExperimentStage, way: str) -> None:
    more: dict[str, Any] = {"entrypoint": "loops.py", "args": [way], "hyperparameters": LOOP}
    winner, story = stage.search(stage.write(way, HALVING, **more))
    assert sorted(each["length"] for each in story.values()) == [3, 3, 3, 9]
    assert story[winner]["length"] == 9


def test_a_plain_script_with_arguments_whose_metric_is_what_it_prints(stage: ExperimentStage) -> None:
    more: dict[str, Any] = {
        "entrypoint": "plain.py",
        "args": ["--lr", "{lr}", "--hidden", "{net.hidden}"],
        "hyperparameters": {**LOOP, "net": {"hidden": {"int": [4, 16]}}},
        "metric_line": r"batch (?P<step>\d+): validation_loss=(?P<metric>\S+)",
    }
    winner, story = stage.search(stage.write("plain", random(4), **more))
    assert {each["length"] for each in story.values()} == {9}
    losses = {trial: each["loss"] for trial, each in story.items()}
    assert len(set(losses.values())) == 4 and winner == min(losses, key=losses.__getitem__)


def test_a_plain_script_that_never_ends_is_ended_when_the_search_stops_its_trial(stage: ExperimentStage) -> None:
    more: dict[str, Any] = {
        "entrypoint": "plain.py",
        "args": ["--lr", "{lr}", "--hidden", "8", "--gate", str(stage.gates)],
        "hyperparameters": LOOP,
        "metric_line": r"batch (?P<step>\d+): validation_loss=(?P<metric>\S+)",
    }
    command = stage.create(stage.write("stopped", HALVING, **more))
    number = number_of(command.said)
    until(lambda: stage.view(number).num_trials.get("COMPLETED") == 3, stage.whole_story)
    (stage.gates / "on").touch()
    winner, story = stage.end_of(command)
    assert {each["state"] for each in story.values()} == {"COMPLETED"}
    assert {trial: each["length"] for trial, each in story.items()} == {**dict.fromkeys(story, 3), winner: 9}
    assert are_gone([int(each.name[4:]) for each in stage.gates.glob("pid-*")])


def test_invalid_hyperparameters_are_replaced_and_do_not_count(stage: ExperimentStage) -> None:
    space = {"x": UNIT, "most": 0.6}
    winner, story = stage.search(stage.write("invalid", random(6), entrypoint="told.py", hyperparameters=space))
    valid = {trial for trial, each in story.items() if each["hparams"]["x"] <= 0.6}
    assert len(valid) == 6 < len(story)
    assert {trial for trial, each in story.items() if each["length"] == 1} == valid
    assert winner in valid


def test_one_trial_whose_restarts_are_used_up_does_not_end_the_experiment(stage: ExperimentStage) -> None:
    space = {"x": UNIT, "most_that_works": 0.75}
    file = stage.write("failing", random(4), entrypoint="told.py", hyperparameters=space, restarts=1)
    number = number_of(stage.create(file).finish())
    assert stage.view(number).state == "COMPLETED"
    for each in stage.trials.trials(number):
        is_bad = each.hparams["x"] > 0.75
        assert (each.state, each.num_restarts) == (("ERROR", 1) if is_bad else ("COMPLETED", 0))
        if is_bad:
            assert re.search(r"w\d+: FileNotFoundError: .*nowhere\.txt", each.reason)
    assert stage.view(number).num_trials == {"COMPLETED": 3, "ERROR": 1}


def test_tpe_has_the_same_trials_on_1_and_3_slots(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    searcher = {"name": "tpe", "metric": LOSS, "max_trials": 16, "cohort": 4}
    stories = []
    for slots in (1, 3):
        (tmp_path / f"{slots}").mkdir()
        with ExperimentStage(tmp_path / f"{slots}", slots=slots) as stage:
            space = {"x": UNIT, "y": UNIT}
            file = stage.write("tpe", searcher, entrypoint="told.py", hyperparameters=space)
            stories.append(stage.search(file))
    assert stories[0] == stories[1]
