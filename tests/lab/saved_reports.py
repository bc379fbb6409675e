"""Checkpoints that nobody trained: their files, and the reports of a job that has saved them."""

from __future__ import annotations

import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import everstep
from everstep import wire
from everstep.checkpoint import catalog
from everstep.checkpoint.index import checkpoint_uuid
from everstep.storage.base import open_storage
from lab.experiments import ToyTrials


def saved(folder: Path, step: int, generation: int = 1, **more: Any) -> wire.CheckpointReport:
    """A checkpoint's files, and its report."""
    place = folder_of(folder, step, generation)
    place.mkdir(parents=True)
    (place / "manifest.json").write_text("{}")
    return wire.CheckpointReport(uuid=uuid.uuid4().hex, uri=str(folder), step=step, generation=generation, **more)


def save(toy: ToyTrials, trial: int, place: Path | str, step: int, loss: float) -> str:
    """A checkpoint that a worker elsewhere has saved and reported."""
    with everstep.Checkpointer(place) as checkpointer:
        checkpointer.save(step, {"weight": loss}, metrics={"loss": loss}, wait=True)
    with closing(open_storage(place)) as storage:
        generation = max(each.key.generation for each in catalog.find(storage) if each.step == step)
    found = checkpoint_uuid(place, step)
    report = wire.CheckpointReport(uuid=found, uri=str(place), step=step, generation=generation, metrics={"loss": loss})
    with toy.job(trial) as job:
        job.report_checkpoint(report)
    return found


def folder_of(folder: Path, step: int, generation: int = 1) -> Path:
    return folder / f"{generation:06d}-{step:012d}"
