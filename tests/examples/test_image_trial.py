"""examples/image_trial.py learns; whoever runs it, dies, or goes on from its checkpoint, the weights are the same."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import everstep
from lab.command import Command
from lab.hold import HOLD

SCRIPT = Path(__file__).parents[2] / "examples" / "image_trial.py"
# 50 batches an epoch, the last of which is half a batch.
QUICK = ("--samples=990", "--epochs=2", "--global-batch-size=20", "--report-every=5")
BATCHES = 100
SAVED = r"checkpoint \S+ of batch [1-9]0:"


def digest(folder: Path) -> str:
    """Of the weights in the last checkpoint of the one run in this folder."""
    (checkpoints,) = folder.glob("runs/image_trial-*/1/checkpoints")
    with everstep.Checkpointer(checkpoints) as checkpointer:
        state = checkpointer.load(BATCHES)
    sha = hashlib.sha256()
    for name, tensor in state["models"][0].items():
        sha.update(name.encode() + tensor.numpy().tobytes())
    return sha.hexdigest()


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    (metrics,) = folder.glob("runs/image_trial-*/1/metrics.jsonl")
    told = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [record for record in told if record["kind"] == kind]


@pytest.fixture(scope="module")
def undisturbed(python: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights of a run in one process."""
    folder = Path(re.findall(r"checkpoint \S+ of batch 100: (\S+)/runs/", python(SCRIPT, *QUICK))[-1])
    validations = records(folder, "validation")
    assert [each["batches"] for each in validations] == [50, 100]
    assert validations[-1]["metrics"]["accuracy"] > 0.4
    return digest(folder)


def test_torchrun_trains_the_same_weights(torchrun: Callable[..., Command], undisturbed: str, tmp_path: Path) -> None:
    torchrun("--nproc-per-node=2", SCRIPT, *QUICK).finish()
    assert digest(tmp_path) == undisturbed


def test_the_death_of_the_chief_changes_nothing(
    everstep_run: Callable[..., Command], undisturbed: str, tmp_path: Path
) -> None:
    run = everstep_run("--nproc-per-node=2", HOLD, SAVED, SCRIPT, *QUICK)
    chief = run.wait_said(rf"\[(w\d)\] {SAVED}")[1]
    run.kill(chief)
    run.let_go()
    said = run.finish()

    assert "1 death survived" in said
    assert digest(tmp_path) == undisturbed
    assert {each["batches"] for each in records(tmp_path, "training")} == set(range(5, BATCHES + 1, 5))


def test_after_the_loss_of_all_the_same_command_goes_on(
    everstep_run: Callable[..., Command], undisturbed: str, tmp_path: Path
) -> None:
    begun = everstep_run("--nproc-per-node=2", HOLD, SAVED, SCRIPT, *QUICK)
    chief = begun.wait_said(rf"\[(w\d)\] {SAVED}")[1]
    begun.kill("w0" if chief == "w1" else "w1", chief)  # who is held goes last: nobody goes on before
    begun.finish(is_good=False)

    said = everstep_run("--nproc-per-node=3", SCRIPT, *QUICK).finish()

    assert re.search(r"resuming from batch [1-9]\d*0 \(checkpoint ", said)
    assert digest(tmp_path) == undisturbed


def test_the_test_mode_does_one_of_each(python: Callable[..., str]) -> None:
    said = python(SCRIPT, *QUICK, "--test")
    assert "validation at batch 1:" in said
    assert "runs/image_trial-test-" in said
    assert "Batch(1) reached: 1 batches" in said
