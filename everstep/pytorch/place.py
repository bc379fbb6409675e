"""Where a run keeps what it leaves: its folder, and its checkpoints."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep import env
from everstep.errors import UsageError
from everstep.pytorch import run_folder
from everstep.pytorch.units import TrainUnit

RUNS = "runs"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    folder: Path
    checkpoints: str
    keep_latest: int | None
    keep_best: int


def decide_place(
    *,
    checkpoints: str | None,
    exp_conf: Mapping[str, Any],
    hparams: Mapping[str, Any],
    length: TrainUnit,
    is_test: bool,
    agree: Callable[[Any], Any],
) -> Place:
    """`checkpoints` or the job file's checkpoint_storage, else in the run's folder.

    `agree` gives all workers of a fixed world what the first of them says; those of a job find it by its name."""
    name = str(exp_conf.get("name") or _script_name()) + ("-test" if is_test else "")
    job = env.job() if env.coordinator_url() else None
    folder = Path(
        agree(str(run_folder.choose(Path(RUNS), name=_clean(name), digest=_digest(hparams), job=job, length=length)))
    )
    storage = exp_conf.get("checkpoint_storage") or {}
    uri = checkpoints or (None if is_test else _configured(storage)) or str(folder.resolve() / "checkpoints")
    return Place(
        folder=folder,
        checkpoints=uri,
        keep_latest=storage.get("save_trial_latest", 2),
        keep_best=storage.get("save_trial_best", 1),
    )


def _configured(storage: Any) -> str | None:
    if isinstance(storage, str):
        return storage
    kind = storage.get("type")
    if kind in (None, "shared_fs", "directory"):
        path = storage.get("host_path") or storage.get("container_path")
        return str(Path(path) / str(storage.get("storage_path") or "")) if path else None
    schemes = {"s3": "s3", "gcs": "gs", "azure": "az"}
    if kind in schemes:
        bucket = storage.get("bucket") or storage.get("container")
        return f"{schemes[kind]}://{bucket}/{str(storage.get('prefix') or '').strip('/')}".rstrip("/")
    raise UsageError(f"checkpoint_storage.type: {kind!r}", hint="use directory, shared_fs, s3, gcs or azure")


def _script_name() -> str:
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(main).stem if main else "notebook"


def _clean(name: str) -> str:
    return "".join(each if each.isalnum() or each in "._-" else "-" for each in name).strip(".-") or "run"


def _digest(hparams: Mapping[str, Any]) -> str:
    """Other hyperparameters are another run."""
    return hashlib.sha256(json.dumps(dict(hparams), sort_keys=True, default=repr).encode()).hexdigest()[:6]
