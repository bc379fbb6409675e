"""Where a run keeps what it leaves: its folder, and its checkpoints."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everstep import env
from everstep.errors import UsageError
from everstep.pytorch import run_folder
from everstep.pytorch.context import PyTorchTrialContext
from everstep.pytorch.plan import FitPlan
from everstep.pytorch.run_folder import RunFolder
from everstep.pytorch.units import Progress, TrainUnit

log = logging.getLogger("everstep")

RUNS = "runs"


class Place:
    """In use by this process until it is closed."""

    def __init__(self, folder: Path, checkpoints: str, storage: Mapping[str, Any], run: RunFolder | None) -> None:
        self.folder, self.checkpoints = folder, checkpoints
        self.keep_latest: int | None = storage.get("save_trial_latest", 2)
        self.keep_best: int = storage.get("save_trial_best", 1)
        self._run = run

    def finished(self, progress: Progress, length: TrainUnit) -> None:
        run_folder.mark_finished(self.folder, progress, length)

    def close(self) -> None:
        if self._run is not None:
            self._run.close()


_fits: Counter[tuple[str, str]] = Counter()  # of this process, by name and hyperparameters


def decide_place(context: PyTorchTrialContext, plan: FitPlan) -> Place:
    """For the next fit of this process: where the context or the job file says, else in the run's folder.

    Workers of a job find the folder by the job's name; in a world that does not change, the chief chooses."""
    exp_conf, job = context.get_experiment_config(), env.job() if env.coordinator_url() else None
    name = str(exp_conf.get("name") or _script_name()) + ("-test" if plan.is_test else "")
    run = None
    if job is not None or context.is_chief:
        digest = run_folder.digest_of(context.get_hparams())
        _fits[name, digest] += 1
        nth = _fits[name, digest]
        run = run_folder.choose(RUNS, name=name, digest=digest, length=plan.length, job=job, nth=nth)
        log.debug("%s: %s", run.path, run.reason)
    folder = Path(context.agree(None if run is None else str(run.path)))
    storage = exp_conf.get("checkpoint_storage") or {}
    uri = context.checkpoints or (None if plan.is_test else _configured(storage)) or str(folder / "checkpoints")
    return Place(folder, uri, storage if isinstance(storage, Mapping) else {}, run)


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
