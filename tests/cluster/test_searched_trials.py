"""Trials of a search: lengths come from it, and whatever happens to the workers, results and weights are the same."""

from __future__ import annotations

import json
import os
import signal
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from everstep.testing import Result
from lab.patience import PATIENT
from lab.scripted_search import SearchStage

TRIAL = "trial.py"
TARGETS: list[list[Any]] = [["train", 4], ["train", 9], ["stop", None]]


def start(*args: object, targets: list[list[Any]] = TARGETS, **settings: Any) -> SearchStage:
    return SearchStage(*args, script=TRIAL, targets=targets, **{"policy": PATIENT, "workers": 1, **settings})


def results(stage: SearchStage) -> dict[int, tuple[Any, str]]:
    """By length; what is said again must be the same."""
    found: dict[int, tuple[Any, str]] = {}
    for each in stage.told("results"):
        said = (each["metric"], each["digest"])
        assert found.setdefault(each["length"], said) == said
    return found


@cache
def undisturbed() -> tuple[dict[int, tuple[Any, str]], str]:
    with start() as stage:
        result = stage.finish()
        return results(stage), result.weights_digest


def check(stage: SearchStage, result: Result) -> None:
    assert (results(stage), result.weights_digest) == undisturbed()


def test_a_promoted_trial_goes_on_in_the_same_process_and_a_stopped_one_ends_well() -> None:
    with start("--batches", 7, targets=[["train", 4]]) as stage:
        stage.wait_told("questions", 2)
        assert [each["length"] for each in stage.told("results")] == [4]
        assert [each["step"] for each in stage.told("checkpoints")] == [4], "known before the search is asked"
        stage.decide(*TARGETS)
        result = stage.finish()
        check(stage, result)
    assert result.exit_codes == {"node1": 0}
    (end,) = result.outputs
    assert end["steps"] == 9, "its own length, 7, does not count"
    assert len(result.events("worker.started")) == 1


def test_every_validation_is_reported_with_the_digest_of_its_weights() -> None:
    found, _ = undisturbed()
    assert sorted(found) == [4, 8, 9]
    assert len({digest for _, digest in found.values()}) == 3
    assert all(len(digest) == 64 for _, digest in found.values())


def test_a_trial_that_waits_leaves_when_asked_and_continues_elsewhere(tmp_path: Path) -> None:
    """Its job is not finished; the next process begins at the batch at which the first one waited."""
    kept = {"trial": {"key": "mine"}}
    with start("--folder", tmp_path / "kept", targets=TARGETS[:1], **kept) as stage:
        stage.wait_told("questions", 2)
        os.kill(stage.pid("w0"), signal.SIGTERM)
        result = stage.finish()
        assert result.exit_codes == {"node1": 0}
        assert not stage.view().is_finished
        assert results(stage).keys() == {4}
    with start("--folder", tmp_path / "kept", **kept) as stage:
        result = stage.finish()
        assert {event["step"] for event in result.events("weights")} == {5, 6, 7, 8, 9}
        assert stage.told("results")[0]["length"] == 4, "said again: it may not have been heard"
        assert [each["seen"] for each in stage.told("questions")][:1] == [1]
        check(stage, result)


def test_a_trial_that_is_told_to_park_leaves_and_its_job_is_not_finished(tmp_path: Path) -> None:
    kept = {"trial": {"key": "mine"}}
    with start("--folder", tmp_path / "kept", targets=[*TARGETS[:1], ["park", None]], **kept) as stage:
        assert stage.finish().exit_codes == {"node1": 0}
        assert not stage.view().is_finished
    with start("--folder", tmp_path / "kept", **kept) as stage:
        check(stage, stage.finish())


def test_a_trial_killed_in_training_gives_the_same_bits(tmp_path: Path) -> None:
    kept = {"trial": {"key": "mine"}}
    with start("--folder", tmp_path / "kept", gates=[6], **kept) as stage:
        stage.wait_at_gate(6)
        stage.kill("w0")
        stage.finish(check=False)
    with start("--folder", tmp_path / "kept", **kept) as stage:
        check(stage, stage.finish())


def test_two_workers_and_a_chief_that_dies_while_all_wait() -> None:
    with start(targets=TARGETS[:1], workers=2) as stage:
        stage.wait_told("questions", 2)
        stage.kill(stage.rank(0))
        stage.wait_told("questions", 3)
        stage.decide(*TARGETS)
        check(stage, stage.finish())


@pytest.mark.parametrize("rank", [0, 1])
def test_a_trial_that_waits_shrinks_when_one_worker_is_asked_to_leave(rank: int) -> None:
    """The chief, too. The others wait on, and train on when the search has decided."""
    with start(targets=TARGETS[:1], workers=2) as stage:
        stage.wait_told("questions", 2)
        leaver, other = stage.rank(rank), stage.rank(1 - rank)
        os.kill(stage.pid(leaver), signal.SIGTERM)
        stage.wait("worker.exited", worker=leaver)
        stage.decide(*TARGETS)
        result = stage.finish()
        check(stage, result)
    (end,) = result.events("worker.exited", worker=leaver)
    assert end["exit_code"] == 0
    assert {event["worker"] for event in result.events("weights") if event["step"] > 4} == {other}


def test_two_workers_park_together() -> None:
    with start(targets=TARGETS[:1], workers=2) as stage:
        stage.wait_told("questions", 2)
        for worker in ("w0", "w1"):
            os.kill(stage.pid(worker), signal.SIGTERM)
        assert stage.finish().exit_codes == {"node1": 0}
        assert not stage.view().is_finished


def test_a_coordinator_that_is_away_while_a_trial_waits() -> None:
    with start(targets=TARGETS[:1]) as stage:
        stage.wait_told("questions", 2)
        stage.restart_coordinator()
        stage.decide(*TARGETS)
        check(stage, stage.finish())


def test_a_script_that_ends_below_its_target_reports_and_ends_well() -> None:
    with start("--stop", "w0@2") as stage:
        result = stage.finish()
        assert [each["length"] for each in stage.told("results")] == [3]
        assert stage.view().is_finished
    assert result.exit_codes == {"node1": 0}


# --- loops of the script's own ---


def own_loop(way: str, *args: object, targets: list[list[Any]], **settings: Any) -> SearchStage:
    settings = {"policy": PATIENT, "workers": 1, **settings}
    return SearchStage("--way", way, *args, script="searched_loop.py", targets=targets, **settings)


@pytest.mark.parametrize("way", ["native", "controller", "plain"])
def test_a_report_waits_at_a_target_and_answers_whether_to_go_on(way: str) -> None:
    with own_loop(way, targets=[["train", 12]]) as stage:
        stage.wait_told("questions", 1)
        assert [each["length"] for each in stage.told("results")] == [6, 12]
        assert [event["step"] for event in stage.events("answered")] == [6], "it waits with the second one"
        stage.decide(["train", 12], ["train", 18], ["stop", None])
        result = stage.finish()
    answers = [(event["step"], event["goes_on"]) for event in result.events("answered")]
    assert answers == [(6, True), (12, True), (18, False)]
    assert result.exit_codes == {"node1": 0}


def test_all_workers_of_a_loop_get_the_same_answer() -> None:
    with own_loop("native", targets=[["train", 6], ["train", 12], ["stop", None]], workers=2) as stage:
        result = stage.finish()
        assert len({each["length"] for each in stage.told("results")}) == len(stage.told("results")) == 2
    for worker in ("w0", "w1"):
        answers = [(event["step"], event["goes_on"]) for event in result.events("answered", worker=worker)]
        assert answers == [(6, True), (12, False)]


@pytest.mark.parametrize("way", ["native", "controller"])
def test_a_loop_that_waits_shrinks_when_one_worker_is_asked_to_leave(way: str) -> None:
    targets: list[list[Any]] = [["train", 6], ["train", 18], ["stop", None]]
    with own_loop(way, targets=targets) as stage:
        undisturbed = stage.finish().weights_digest
    with own_loop(way, targets=targets[:1], workers=2) as stage:
        stage.wait_told("questions", 1)
        leaver = stage.rank(0)
        os.kill(stage.pid(leaver), signal.SIGTERM)
        stage.wait("worker.exited", worker=leaver)
        stage.decide(*targets)
        result = stage.finish()
    assert result.weights_digest == undisturbed


def test_a_loop_that_waits_saves_and_leaves_when_asked(tmp_path: Path) -> None:
    targets: list[list[Any]] = [["train", 6], ["train", 18], ["stop", None]]
    with own_loop("native", targets=targets) as stage:
        undisturbed = stage.finish().weights_digest
    kept = ("--folder", tmp_path)
    with own_loop("native", *kept, targets=targets[:1]) as stage:
        stage.wait_told("questions", 1)
        os.kill(stage.pid("w0"), signal.SIGTERM)
        assert stage.finish().exit_codes == {"node1": 0}
        assert not stage.view().is_finished
    with own_loop("native", *kept, targets=targets) as stage:
        result = stage.finish()
    assert [event["step"] for event in result.events("answered")] == [12, 18]
    assert result.weights_digest == undisturbed


def test_invalid_hyperparameters_end_the_trial_and_are_no_failure(tmp_path: Path) -> None:
    config = tmp_path / "experiment.json"
    config.write_text(json.dumps({"hyperparameters": {"lr": -1}}))
    env = {"EVERSTEP_EXPERIMENT": str(config)}
    with own_loop("native", targets=TARGETS, env=env, workers=2) as stage:
        result = stage.finish()
        ends = stage.told("ends")
    assert result.exit_codes == {"node1": 0}
    assert {(end["why"], end["reason"]) for end in ends} == {("INVALID_HP", "lr must be above 0")}
    assert {event["exit_code"] for event in result.events("worker.exited")} == {0}


def test_hyperparameters_that_show_to_be_invalid_in_training_end_the_trial_too() -> None:
    with start("--invalid", 5) as stage:
        result = stage.finish()
        assert [(end["why"], end["reason"]) for end in stage.told("ends")] == [("INVALID_HP", "the loss is no number")]
        assert [each["length"] for each in stage.told("results")] == [4]
    assert result.exit_codes == {"node1": 0}
