"""examples/02_native_loop: examples/01_plain_ddp with a few lines changed runs alone, and over a death."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import SequenceMatcher
from pathlib import Path

from lab.command import Command
from lab.hold import HOLD

EXAMPLES = Path(__file__).parents[2] / "examples"
PLAIN, ELASTIC = EXAMPLES / "01_plain_ddp" / "ddp.py", EXAMPLES / "02_native_loop" / "train.py"
QUICK = ("--epochs", "1", "--batch-size", "50")


def lines(path: Path) -> list[str]:
    """Without the docstring, comments, empty lines and indentation: what moves into a `with` stays as it is."""
    code = (line.strip() for line in path.read_text().splitlines()[1:])
    return [line for line in code if line and not line.startswith("#")]


def num_changed(before: list[str], after: list[str]) -> int:
    """A line that replaces another is one change, and so is each that is only added or only removed."""
    changes = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return sum(max(i2 - i1, j2 - j1) for what, i1, i2, j1, j2 in changes if what != "equal")


def test_at_most_eight_lines_are_changed() -> None:
    assert 0 < num_changed(lines(PLAIN), lines(ELASTIC)) <= 8


def accuracy(said: str) -> float:
    (percent,) = re.findall(r"test accuracy ([\d.]+)%", said)
    return float(percent) / 100


def test_it_runs_alone(python: Callable[..., str]) -> None:
    assert accuracy(python(ELASTIC, *QUICK)) > 0.4


def test_it_goes_on_without_a_killed_worker(everstep_run: Callable[..., Command]) -> None:
    begins = r"rank 1 of 2 \| epoch 0"
    run = everstep_run("--nproc-per-node=2", HOLD, begins, ELASTIC, *QUICK)
    victim = run.wait_said(rf"\[(w\d)\] {begins}")[1]
    run.kill(victim)
    run.let_go()
    said = run.finish()
    assert "1 death survived" in said
    assert accuracy(said) > 0.4
