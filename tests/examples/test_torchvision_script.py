"""The training script of ADS's guide, unchanged, under `everstep run`.

It wants torchvision's CIFAR10: the real one if it can be imported and CIFAR10_DIR names a folder that has its data,
else the one in standin/."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.command import Command
from lab.seeds import snippet

TESTS = Path(__file__).parents[1]
STANDIN = TESTS / "examples" / "standin"


@pytest.fixture(scope="session")
def torchvision() -> dict[str, str]:
    """What to add to the environment for `import torchvision` to work."""
    if "CIFAR10_DIR" in os.environ:
        done = subprocess.run([sys.executable, "-c", "from torchvision.datasets import CIFAR10"], check=False)
        if done.returncode == 0:
            return {}
    return {"PYTHONPATH": f"{STANDIN}:{TESTS.parent}"}


def test_it_runs_with_two_workers(
    everstep_run: Callable[..., Command], torchvision: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(snippet(2, "import torchvision"))
    data = os.environ.get("CIFAR10_DIR", "data")
    arguments = ["--data-dir", data, "--epochs=1", "--workers=1", "--learning-rate=0.03", "--print-freq=20"]
    said = everstep_run("--nproc-per-node=2", script, *arguments, **torchvision).finish()
    for rank in (0, 1):
        assert f"[w{rank}] Rank {rank}: Starting epoch 0" in said
        assert f"[w{rank}] Rank {rank}: Finished Training" in said
        losses = [float(loss) for loss in re.findall(rf"Rank {rank}: \[1, .*\] loss: ([\d.]+)", said)]
        assert losses[-1] < losses[1]  # the first is of one batch, divided by twenty
    assert said.count("Accuracy of the network on the 10000 test images: ") == 1
    assert (tmp_path / "outputs" / "cifar_net.pt").exists()
