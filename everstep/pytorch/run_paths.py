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
from everstep.pytorch import run_folder, run_storage
from everstep.pytorch.context import PyTorchTrialContext
from everstep.pytorch.due_actions import FitPlan
from everstep.pytorch.run_folder import RunFolder
from everstep.pytorch.run_storage import RunPlace
from everstep.pytorch.units import BatchProgress, TrainUnit

log = logging.getLogger("everstep")

RUNS = "runs"


class RunPaths:
    """In use by this process until it is closed."""

    def __init__(
        self, folder: Path, checkpoints: str, storage: Mapping[str, Any], run: RunFolder | None, kept: RunPlace | None
    ) -> None:
        self.folder, self.checkpoints = folder, checkpoints
        latest = storage.get("save_trial_latest", 2)
        self.keep_latest: int | None = None if latest is None else max(latest, 1)  # the newest is never deleted
        self.keep_best: int = storage.get("save_trial_best", 1)
        self._run, self._kept = run, kept

    def finished(self, progress: BatchProgress, length: TrainUnit) -> None:
        run_folder.mark_finished(self.folder, progress, length)
        if self._kept is not None:
            self._kept.mark_finished(progress, length)

    def close(self) -> None:
        if self._run is not None:
            self._run.close()
        if self._kept is not None:
            self._kept.close()


_fits: Counter[tuple[str, str]] = Counter()  # of this process, by name and hyperparameters


def decide_place(context: PyTorchTrialContext, plan: FitPlan) -> RunPaths:
    """For the next fit of this process. Checkpoints are where the script says; else the run has a place of its own, in
    the storage that the job file names or in the run's folder.

    Workers of a job find it by the job's name; in a world that does not change, the chief chooses."""
    exp_conf, job = context.get_experiment_config(), env.job() if env.coordinator_url() else None
    name = str(exp_conf.get("name") or _script_name()) + ("-test" if plan.is_test else "")
    storage = exp_conf.get("checkpoint_storage") or {}
    configured = None if plan.is_test or context.checkpoints else _configured(storage)
    run = kept = None
    if job is not None or context.is_chief:
        digest = run_folder.digest_of(context.get_hparams())
        _fits[name, digest] += 1
        which: Any = {"name": name, "digest": digest, "length": plan.length, "job": job, "nth": _fits[name, digest]}
        run = run_folder.choose(RUNS, **which)
        kept = run_storage.choose(configured, **which) if configured is not None else None
        log.debug("%s: %s", run.path, run.reason)
    folder = Path(context.agree(None if run is None else str(run.path)))
    below = None if configured is None else context.agree(None if kept is None else kept.uri)
    uri = context.checkpoints or below or str(folder / "checkpoints")
    return RunPaths(folder, uri, storage if isinstance(storage, Mapping) else {}, run, kept)


def _configured(storage: Any) -> str | None:
    if isinstance(storage, str):
        return storage
    if storage.get("uri"):
        return str(storage["uri"])
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
