"""The same bits for every number of workers: odd numbers of micro-batches, micro-batches of different sizes, empty
ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import everstep
from lab.stage import SCRIPTS

TIMEOUT_S = 600  # dozens of worlds
pytestmark = pytest.mark.timeout(TIMEOUT_S)


@pytest.fixture(scope="module")
def runs() -> dict[str, list[dict[str, Any]]]:
    root = Path(everstep.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "worlds.py")],
        env=os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=TIMEOUT_S - 10,
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    return {run: [line for line in told if line["run"] == run] for run in {line["run"] for line in told}}


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("micro_batches", [5, 6, 7])
def test_the_same_bits_in_worlds_of_one_to_five(
    runs: dict[str, list[dict[str, Any]]], micro_batches: int, optimizer: str
) -> None:
    told = runs[f"{micro_batches} micro-batches, {optimizer}"]
    assert [len(line["ends"]) for line in told] == [1, 2, 3, 4, 5]
    assert len({digest for line in told for digest in line["ends"]}) == 1


@pytest.mark.parametrize("micro_batches", [5, 7])
def test_micro_batches_of_different_sizes_give_the_mean_over_samples(
    runs: dict[str, list[dict[str, Any]]], micro_batches: int
) -> None:
    told = runs[f"{micro_batches} weighted micro-batches, float64"]
    for line in told:
        for weights in line["ends"]:
            assert weights == pytest.approx(line["full_batch"], rel=1e-12, abs=1e-12)
    for dtype in ("float32", "float64"):
        ends = [
            tuple(weights)
            for line in runs[f"{micro_batches} weighted micro-batches, {dtype}"]
            for weights in line["ends"]
        ]
        assert len(set(ends)) == 1  # bit for bit


def test_buffers_do_not_depend_on_the_number_of_workers(runs: dict[str, list[dict[str, Any]]]) -> None:
    told = runs["buffers"]
    assert [len(line["ends"]) for line in told] == [1, 2, 3, 5]
    assert len({digest for line in told for digest in line["ends"]}) == 1


def test_workers_that_are_not_the_same_any_more_are_told_so(runs: dict[str, list[dict[str, Any]]]) -> None:
    (rates,), (weights,) = runs["other rate"], runs["other weights"]
    sentence = "after 3 steps the workers are not the same: lr of optimizer 0, group 0 is 0.1 on w0 and 0.2 on w1"
    assert rates["ends"] == [sentence] * 2
    assert weights["ends"][0] == weights["ends"][1]
    assert "after 4 steps the workers are not the same: the checksum of bias is" in weights["ends"][0]


def test_one_that_comes_back_into_the_same_step_computes_its_micro_batch_again(
    runs: dict[str, list[dict[str, Any]]],
) -> None:
    (told,) = runs["the same step"]
    (first, weights), (second, same_weights) = told["ends"]
    assert first == [[0, 0], [1, 0]]
    assert second == [[0, 1], [0, 1], [1, 1]]
    assert weights == same_weights


def test_a_body_that_breaks_off_after_the_commit_does_not_make_workers_differ(
    runs: dict[str, list[dict[str, Any]]],
) -> None:
    for told in runs["after the commit"]:
        alone, *together = told["ends"]
        assert together[0] == together[1]
        if len(told["victims"]) == 1:  # its scheduler was not stepped: the other's state is the right one
            assert together[0] == alone


def test_what_one_has_to_say_reaches_all_however_long_it_is(runs: dict[str, list[dict[str, Any]]]) -> None:
    (told,) = runs["notes"]
    assert told["ends"] == [told["sizes"]] * 3


def test_a_peer_lost_at_the_end_of_a_fixed_world_is_an_error(runs: dict[str, list[dict[str, Any]]]) -> None:
    (told,) = runs["a lost peer"]
    first, dead, last = told["ends"]
    assert first == last == "a peer was lost, and torchrun's world is fixed"
    assert dead is None


def test_a_result_that_was_read_too_late_is_thrown_away(runs: dict[str, list[dict[str, Any]]]) -> None:
    assert [told["ends"] for told in runs["too late"] if not told["is_last"]] == [[2, 1]]


def test_a_result_that_is_read_after_the_others_have_ended_counts(runs: dict[str, list[dict[str, Any]]]) -> None:
    assert [told["ends"] for told in runs["too late"] if told["is_last"]] == [[2, 2]]
