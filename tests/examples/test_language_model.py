"""examples/language_model.py learns from a little of the text, and writes the same wherever it was trained."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.command import Command

SCRIPT = Path(__file__).parents[2] / "examples" / "language_model.py"
QUICK = ("--windows=2000", "--batch-size=5", "--width=32", "--layers=1", "--warm-up=10")


@pytest.fixture(scope="module")
def alone(python: Callable[..., str]) -> str:
    return python(SCRIPT, *QUICK)


def end(said: str) -> str:
    """From the loss on unseen text to the last letter; without what `everstep run` says and puts before each line."""
    lines = [re.sub(r"^\[w\d+\] ?", "", line) for line in said.splitlines() if not line.startswith("everstep:")]
    return "loss on unseen text" + "\n".join(lines).strip().partition("loss on unseen text")[2]


def test_it_learns(alone: str) -> None:
    losses = [float(loss) for loss in re.findall(r"step +\d+  loss ([\d.]+)", alone)]
    (unseen,) = re.findall(r"loss on unseen text ([\d.]+)", alone)
    assert len(losses) == 2  # of 100 steps
    assert float(unseen) < losses[1] < losses[0] - 1
    assert "Call me Ishmael. Some years ago—never mind" in alone  # what it goes on from


def test_torchrun_trains_the_same_model(torchrun: Callable[..., Command], alone: str) -> None:
    assert end(torchrun("--nproc-per-node=2", SCRIPT, *QUICK).finish()) == end(alone)


def test_everstep_trains_the_same_model(everstep_run: Callable[..., Command], alone: str) -> None:
    assert end(everstep_run("--nproc-per-node=2", SCRIPT, *QUICK).finish()) == end(alone)
