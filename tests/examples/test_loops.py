"""The small loops: elastic_loop.py with several workers, fashion_mnist.py in each of the ways that it names."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from lab.command import EVERSTEP, Command

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE = ("--lease-s=600", "--arrive-s=600", "--stall-s=600")  # nobody is lost by being slow
FASHION = (EXAMPLES / "fashion_mnist.py", "--epochs=1")


def test_the_elastic_loop_runs_with_two_workers(everstep_run: Callable[..., Command]) -> None:
    said = everstep_run("--nproc-per-node=2", EXAMPLES / "elastic_loop.py").finish()
    losses = dict(re.findall(r"^\[(w\d)\] loss ([\d.]+)$", said, re.MULTILINE))
    assert sorted(losses) == ["w0", "w1"]
    assert all(float(loss) < 1.5 for loss in losses.values())  # from ln 10 = 2.3


def test_fashion_mnist_ends_with_the_same_weights_in_all_three_ways(
    type_command: Callable[..., Command], torchrun: Callable[..., Command], tmp_path: Path
) -> None:
    """Each is started plainly, as by a person who has nothing warm."""
    everstep_run = [*EVERSTEP, "run", *PATIENCE, "--nproc-per-node=3"]
    typed = [
        type_command(sys.executable, *FASHION),
        torchrun("--nproc-per-node=2", *FASHION),
        type_command(*everstep_run, *FASHION, XDG_RUNTIME_DIR=str(tmp_path)),
    ]
    runs = [each.finish() for each in typed]
    ends = [re.findall(r"test accuracy [\d.]+%, weights \w{16}$", said, re.MULTILINE) for said in runs]
    assert ends == [ends[0]] * 3
    assert len(ends[0]) == 1
