"""examples/image_cnn.py learns; whoever runs it, dies, or goes on from its checkpoint, the weights are the same."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.command import Command
from lab.hold import HOLD

SCRIPT = Path(__file__).parents[2] / "examples" / "image_cnn.py"
# 100 steps an epoch, the last of which has half a global batch. No checkpoint but the last is at the end of an epoch.
QUICK = ("--samples=1990", "--epochs=2", "--batch-size=5", "--save-every=7")


def load(checkpoint: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(checkpoint)
    return state


def digest(checkpoint: Path) -> str:
    sha = hashlib.sha256()
    for name, tensor in load(checkpoint)["model"].items():
        sha.update(name.encode() + tensor.numpy().tobytes())
    return sha.hexdigest()


@pytest.fixture(scope="module")
def undisturbed(python: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights of a run in one process."""
    checkpoint = tmp_path_factory.mktemp("undisturbed") / "model.pt"
    said = python(SCRIPT, *QUICK, "--checkpoint", checkpoint)
    (percent,) = re.findall(r"validation accuracy ([\d.]+)%", said)
    assert float(percent) > 50
    return digest(checkpoint)


def test_torchrun_trains_the_same_weights(torchrun: Callable[..., Command], undisturbed: str, tmp_path: Path) -> None:
    torchrun("--nproc-per-node=2", SCRIPT, *QUICK).finish()
    assert digest(tmp_path / "model.pt") == undisturbed


def test_the_death_of_the_worker_that_writes_the_checkpoint_changes_nothing(
    everstep_run: Callable[..., Command], undisturbed: str, tmp_path: Path
) -> None:
    run = everstep_run("--nproc-per-node=3", HOLD, "epoch 0  step +7 ", SCRIPT, *QUICK)
    writer = run.wait_said(r"\[(w\d)\] epoch 0  step +7 ")[1]
    run.kill(writer)
    run.let_go()
    said = run.finish()

    assert "1 death survived" in said
    assert digest(tmp_path / "model.pt") == undisturbed


def test_after_the_loss_of_all_another_number_of_workers_goes_on_inside_the_epoch(
    everstep_run: Callable[..., Command], undisturbed: str, tmp_path: Path
) -> None:
    begun = everstep_run("--nproc-per-node=2", HOLD, "epoch 0  step +7 ", SCRIPT, *QUICK)
    writer = begun.wait_said(r"\[(w\d)\] epoch 0  step +7 ")[1]
    begun.kill("w0" if writer == "w1" else "w1", writer)  # who is held goes last: nobody goes on before
    begun.finish(is_good=False)
    kept = load(tmp_path / "model.pt")["trainer"]
    assert kept["data"]["position"] > 0

    resumed = everstep_run("--nproc-per-node=3", SCRIPT, *QUICK, "--resume").finish()

    assert resumed.count(f"resuming after step {kept['num_steps']}") == 3
    assert digest(tmp_path / "model.pt") == undisturbed
