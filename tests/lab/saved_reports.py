"""Checkpoints that nobody trained: their files, and the reports of a job that has saved them."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from everstep import wire


def saved(folder: Path, step: int, generation: int = 1, **more: Any) -> wire.CheckpointReport:
    """A checkpoint's files, and its report."""
    place = folder_of(folder, step, generation)
    place.mkdir(parents=True)
    (place / "manifest.json").write_text("{}")
    return wire.CheckpointReport(uuid=uuid.uuid4().hex, uri=str(folder), step=step, generation=generation, **more)


def folder_of(folder: Path, step: int, generation: int = 1) -> Path:
    return folder / f"{generation:06d}-{step:012d}"
