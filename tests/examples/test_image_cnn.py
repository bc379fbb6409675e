"""examples/image_cnn.py: it learns, and a run that goes on from a checkpoint is like one that was never stopped."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from typed import Typed

SCRIPT = Path(__file__).parents[2] / "examples" / "image_cnn.py"


def test_a_resumed_run_ends_with_the_weights_of_one_that_was_not_stopped(
    type_command: Callable[..., Typed], tmp_path: Path
) -> None:
    def train(name: str, *options: str) -> Typed:
        return type_command(sys.executable, SCRIPT, "--batch-size=100", "--checkpoint", f"{name}.pt", *options)

    whole, begun = train("whole", "--epochs=2"), train("stopped", "--epochs=1")
    begun.finish()
    resumed = train("stopped", "--epochs=2", "--resume").finish()

    assert "goes on with epoch 1" in resumed
    (accuracy,) = re.findall(r"validation accuracy ([\d.]+)%", resumed)
    assert float(accuracy) > 50
    assert resumed.splitlines()[-2:] == whole.finish().splitlines()[-2:]
    weights = [torch.load(tmp_path / f"{name}.pt")["model"] for name in ("whole", "stopped")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
