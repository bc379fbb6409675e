"""examples/language_model.py learns from a little of the text."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "language_model.py"
QUICK = ("--windows=2000", "--batch-size=20", "--width=32", "--layers=1", "--warm-up=10")


def test_it_learns(python: Callable[..., str]) -> None:
    said = python(SCRIPT, *QUICK)
    assert "100 steps an epoch" in said
    losses = [float(loss) for loss in re.findall(r"step +\d+  loss ([\d.]+)", said)]
    (unseen,) = re.findall(r"loss on unseen text ([\d.]+)", said)
    assert len(losses) == 2
    assert float(unseen) < losses[1] < losses[0] - 1
    assert "Call me Ishmael. Some years ago—never mind" in said  # what it goes on from
