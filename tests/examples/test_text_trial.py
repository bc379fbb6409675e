"""examples/text_trial.py learns from a little of the text, and writes the same wherever it was trained."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.command import Command
from lab.hold import HOLD

SCRIPT = Path(__file__).parents[2] / "examples" / "text_trial.py"
QUICK = ("--windows=2000", "--global-batch-size=20", "--width=32", "--layers=1", "--warm-up=10", "--report-every=10")


def validations(said: str) -> list[str]:
    """The last told of each batch: a chief that dies may have told, and the next one tells again."""
    told = re.findall(r"validation at batch (\d+): (validation_loss [\d.]+, perplexity [\d.]+)", said)
    return [told_last for _, told_last in sorted({int(batch): text for batch, text in told}.items())]


def best(said: str) -> str:
    return re.findall(r"best checkpoint .*?: ([0-9a-f-]{36}) of batch", said)[-1]


@pytest.fixture(scope="module")
def alone(python: Callable[..., str]) -> tuple[str, str]:
    """What was said, and what the best checkpoint writes."""
    said = python(SCRIPT, *QUICK)
    return said, python(SCRIPT, "--write", best(said))


def test_it_learns(alone: tuple[str, str]) -> None:
    said, written = alone
    losses = [float(loss) for loss in re.findall(r"validation_loss ([\d.]+),", said)]
    assert len(losses) == 3  # at batch 40, 80, and at the end
    assert losses[-1] < losses[0] < 3.5
    assert "Call me Ishmael. Some years ago—never mind" in written


def test_a_killed_worker_changes_no_letter(
    everstep_run: Callable[..., Command], python_here: Callable[..., str], alone: tuple[str, str]
) -> None:
    run = everstep_run("--nproc-per-node=3", HOLD, "validation at batch 40:", SCRIPT, *QUICK)
    run.wait_said("validation at batch 40:")
    run.kill("w1")
    run.let_go()
    said = run.finish()

    assert "1 death survived" in said
    assert validations(said) == validations(alone[0])
    assert python_here(SCRIPT, "--write", best(said)) == alone[1]
