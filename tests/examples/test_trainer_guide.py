"""The scripts of the guide to Determined's PyTorch Trainer run after changing their imports: alone, in worlds of
several workers, in test mode, and out of a checkpoint."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.command import ROOT, Command

SCRIPTS = ROOT / "tests" / "seeds" / "trainer"
BATCHES = 12  # of an epoch: 384 samples in batches of 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the scripts are typed."""
    for path in SCRIPTS.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    return tmp_path


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    found = [
        json.loads(line) for path in folder.glob("runs/*/*/metrics.jsonl") for line in path.read_text().splitlines()
    ]
    return [line for line in found if line["kind"] == kind]


def check_epoch(folder: Path) -> dict[str, Any]:
    """It was trained for one epoch, and has learned; its last validation."""
    assert [line["batches"] for line in lines(folder, "validation")] == [10, BATCHES]
    assert lines(folder, "checkpoint")[-1]["batches"] == BATCHES
    assert lines(folder, "end")[0]["batches"] == BATCHES
    first, last = (line["metrics"] for line in lines(folder, "validation"))
    assert last["validation_loss"] < first["validation_loss"]
    return dict(last)


def test_step_3_alone_and_step_6_from_its_checkpoint(folder: Path, python_here: Callable[..., str]) -> None:
    pytest.importorskip("yaml")
    python_here("train.py")
    check_epoch(folder)
    assert [line["batches"] for line in lines(folder, "checkpoint")][:2] == [2, 5]

    uuid = lines(folder, "checkpoint")[-1]["uuid"]
    said = python_here("load.py", uuid)
    assert re.search(r"made MyPyTorchTrial from .*/code/model\.py", said)
    assert "loaded MyPyTorchTrial" in said


def test_step_3_by_torchrun(folder: Path, torchrun: Callable[..., Command]) -> None:
    torchrun("--nproc-per-node=2", "train_distributed.py").finish()
    check_epoch(folder)


@pytest.mark.parametrize("script", ["train_distributed.py", "train_anywhere.py"])
def test_steps_3_and_4_by_everstep_run(script: str, folder: Path, everstep_run: Callable[..., Command]) -> None:
    everstep_run("--nproc-per-node=2", script).finish()
    check_epoch(folder)


def test_step_4_by_torchrun(folder: Path, torchrun: Callable[..., Command]) -> None:
    torchrun("--nproc-per-node=2", "train_anywhere.py").finish()
    check_epoch(folder)


def test_step_4_in_a_job_alone(folder: Path, everstep_run: Callable[..., Command]) -> None:
    """Length and hyperparameters are those of the job file."""
    job = {
        "name": "guide",
        "hyperparameters": {"global_batch_size": 32, "lr": 0.02},
        "searcher": {"name": "single", "metric": "validation_loss", "max_length": {"batches": 15}},
        "resources": {"slots_per_trial": 4},
    }
    (folder / "job.json").write_text(json.dumps(job))
    everstep_run("--nproc-per-node=2", "train_on_cluster.py", EVERSTEP_EXPERIMENT=str(folder / "job.json")).finish()
    assert [line["batches"] for line in lines(folder, "validation")] == [15]
    assert lines(folder, "end")[0]["batches"] == 15


@pytest.mark.parametrize("launcher", ["python", "torchrun", "everstep run"])
def test_test_mode(launcher: str, folder: Path, python_here: Any, torchrun: Any, everstep_run: Any) -> None:
    """One batch, one validation batch, one checkpoint."""
    start = {
        "python": python_here,
        "torchrun": lambda script: torchrun("--nproc-per-node=2", script).finish(),
        "everstep run": lambda script: everstep_run("--nproc-per-node=2", script).finish(),
    }[launcher]
    start("train_test_mode.py")
    for kind in ("training", "validation", "checkpoint", "end"):
        assert [line["batches"] for line in lines(folder, kind)] == [1]


def test_the_same_weights_alone_and_by_everstep_run(
    folder: Path, python_here: Callable[..., str], everstep_run: Callable[..., Command]
) -> None:
    pytest.importorskip("yaml")
    python_here("train.py")
    alone = check_epoch(folder)
    shutil.rmtree(folder / "runs")
    everstep_run("--nproc-per-node=3", "train.py").finish()
    assert check_epoch(folder) == alone
