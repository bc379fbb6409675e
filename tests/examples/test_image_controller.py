"""examples/image_controller.py, ElasticDL's script, learns; each image is in committed steps once per epoch."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.command import Command
from lab.hold import HOLD

SCRIPT = Path(__file__).parents[2] / "examples" / "image_controller.py"
RECORDS = 7000


def accuracy(said: str) -> float:
    (percent,) = re.findall(r"test accuracy ([\d.]+)%", said)
    return float(percent)


def positions_used(home: Path) -> Counter[int]:
    """How often each position of the data is in a committed step of the one run in this folder."""
    (events,) = home.glob("runs/*/events.jsonl")
    told = [json.loads(line) for line in events.read_text().splitlines()]
    steps = {event["step"]: event["parts"] for event in told if event["event"] == "samples.used"}
    return Counter(p for parts in steps.values() for start, count in parts for p in range(start, start + count))


@pytest.mark.parametrize("loaders", [0, 2])
def test_it_runs_alone(loaders: int, python: Callable[..., str]) -> None:
    said = python(SCRIPT, "--num_epochs=1", "--num_workers", loaders)
    assert "epoch 0  step 121  loss" in said
    assert accuracy(said) > 60


def test_a_tail_shorter_than_a_batch_is_told(python: Callable[..., str]) -> None:
    said = python(SCRIPT, "--num_epochs=1", "--batch_size=64")
    assert "24 samples were left out" in said


@pytest.mark.parametrize("loaders", [0, 1])
def test_a_killed_worker_costs_and_repeats_no_image(
    loaders: int, everstep_run: Callable[..., Command], tmp_path: Path
) -> None:
    spoken = r"epoch 0  step +\d+  loss"
    run = everstep_run("--nproc-per-node=3", HOLD, spoken, SCRIPT, "--num_epochs=2", "--num_workers", loaders)
    speaker = run.wait_said(rf"\[(w\d)\] {spoken}")[1]
    run.kill(speaker)
    run.let_go()
    said = run.finish()

    assert "1 death survived" in said
    assert positions_used(tmp_path) == Counter(range(2 * RECORDS))
    assert accuracy(said) > 60
