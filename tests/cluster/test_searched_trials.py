"""Trials of a search: lengths come from it, and whatever happens to the workers, results and weights are the same."""

from __future__ import annotations

import json
import os
import signal
from functools import cache
from pathlib import Path
from typing import Any

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
    with start(targets=[["train", 4]]) as stage:
        stage.wait_told("questions", 2)
        assert [each["length"] for each in stage.told("results")] == [4]
        assert [each["step"] for each in stage.told("checkpoints")] == [4], "known before the search is asked"
        stage.decide(*TARGETS)
        result = stage.finish()
        check(stage, result)
    assert result.exit_codes == {"node1": 0}
    (end,) = result.outputs
    assert end["steps"] == 9, "its own length, 12, is only a bound"
    assert len(result.events("worker.started")) == 1


def test_every_validation_is_reported_with_the_digest_of_its_weights() -> None:
    found, _ = undisturbed()
    assert sorted(found) == [4, 8, 9]
    assert len({digest for _, digest in found.values()}) == 3
    assert all(len(digest) == 64 for _, digest in found.values())
