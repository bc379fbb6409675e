"""Where a run keeps its files: `runs/NAME-DIGEST/1`, `…/2`, one folder for each run with the same name and
hyperparameters; and its checkpoints in the same way below a configured storage.

The same command continues its newest run until that reaches the requested length, then begins the next one. All workers
of a job write to the same folder, including late ones: the first choice is recorded. A run that another process is
using is left alone; a bucket has no locks, so this is not noticed there. `run.json` records how far a finished run
came. Imports no torch itself."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everstep import env
from everstep.errors import UsageError
from everstep.pytorch.fit_plan import FitPlan
from everstep.pytorch.progress import BatchProgress
from everstep.pytorch.train_units import TrainUnit
from everstep.record.trial import trial_folder, trial_key
from everstep.storage import private_file
from everstep.storage.base import full_uri, open_storage

if TYPE_CHECKING:
    from everstep.pytorch.context import PyTorchTrialContext
    from everstep.record.trial import TrialFacts

log = logging.getLogger("everstep")

RUNS = "runs"
FINISH = "run.json"
_IN_USE = ".in-use"


# --- which run: pure ---


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownRun:
    """The newest run with this name and these hyperparameters."""

    number: int
    finished_at: BatchProgress | None = None  # None: it never finished
    is_in_use: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RunDecision:
    number: int
    code: str
    reason: str


def decide_run(newest: KnownRun | None, length: TrainUnit) -> RunDecision:
    """Only the newest run is continued: older ones were left behind on purpose."""
    if newest is None:
        return RunDecision(number=1, code="first", reason="the first run with this name and these hyperparameters")
    number = newest.number
    if newest.is_in_use:
        return RunDecision(number=number + 1, code="in-use", reason=f"run {number} is in use by another process")
    if newest.finished_at is None:
        return RunDecision(number=number, code="unfinished", reason=f"run {number} is unfinished: continuing it")
    reached = f"{length.of(newest.finished_at):g}"
    if not length.is_reached(newest.finished_at):
        reason = f"run {number} reached {reached} of {length.value} {length.noun}: continuing it"
        return RunDecision(number=number, code="too-short", reason=reason)
    return RunDecision(number=number + 1, code="finished", reason=f"run {number} finished with {reached} {length.noun}")


def plain_name(name: str) -> str:
    """A name for a folder: letters, digits and a few signs."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:64]
    if not plain:
        raise UsageError(f"not a name for a run: {name!r}", hint="use letters and digits", code="run-name-unusable")
    return plain


def digest_of(hparams: Mapping[str, Any] | None) -> str:
    """6 hexadecimal digits. A value that is not plain data counts by its type: its text may change from run to run."""
    text = json.dumps(hparams or {}, sort_keys=True, default=lambda value: type(value).__qualname__)
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def finish_record(progress: BatchProgress, length: TrainUnit) -> bytes:
    """The content of `run.json`."""
    content = {"unit": length.noun, "value": length.of(progress), "length": length.value, "progress": asdict(progress)}
    return json.dumps(content, indent=1).encode() + b"\n"


def _parse_finish(text: bytes, where: str) -> BatchProgress:
    try:
        found = json.loads(text)["progress"]
        counts: dict[str, Any] = {
            name: float(value) if name == "seconds" else int(value) for name, value in found.items()
        }
        return BatchProgress(**counts)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{where}: {type(error).__name__}: {error}", hint="delete it to continue", code="run-record-unreadable"
        ) from error


# --- a folder ---


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """In use by this process until it is closed or the process ends."""

    path: Path
    reason: str
    _hold: int = field(repr=False)

    def close(self) -> None:
        os.close(self._hold)


def choose_folder(
    base: str | os.PathLike[str], *, name: str, digest: str, length: TrainUnit, job: str | None = None, nth: int = 1
) -> RunFolder:
    """The folder for a run of that length; created if it does not exist.

    All workers of a `job` get the same one with their `nth` call. The last run must be marked as finished before the
    next call."""
    runs = Path(base).absolute() / f"{plain_name(name)}-{digest}"
    with private_file.locked(runs / ".lock"):
        number = _recorded(runs, job).get(str(nth)) if job is not None else None
        if number is not None and (runs / str(number)).is_dir():
            reason = f"run {number} belongs to job {job}"
        else:
            decision = decide_run(_newest(runs, job), length)
            number, reason = decision.number, decision.reason
            if job is not None:
                private_file.write_json(_path_of_job(runs, job), _recorded(runs, job) | {str(nth): number})
        folder = private_file.make_folder(runs / str(number))
        return RunFolder(path=folder, reason=reason, _hold=_hold(folder))


def mark_finished(folder: str | os.PathLike[str], progress: BatchProgress, length: TrainUnit) -> None:
    """Called by one worker, before the others leave."""
    private_file.write(Path(folder) / FINISH, finish_record(progress, length))


def _newest(runs: Path, job: str | None) -> KnownRun | None:
    number = _highest(each.name for each in runs.iterdir() if each.is_dir())
    if number is None:
        return None
    folder = runs / str(number)
    # A run of this job is not in use by strangers: one of its workers may have begun it.
    is_ours = job is not None and number in _recorded(runs, job).values()
    known = _known_run(number, str(folder / FINISH), (folder / FINISH).read_bytes)
    return replace(known, is_in_use=not is_ours and _is_in_use(folder))


def _known_run(number: int, where: str, read: Callable[[], bytes]) -> KnownRun:
    try:
        return KnownRun(number=number, finished_at=_parse_finish(read(), where))
    except FileNotFoundError:
        return KnownRun(number=number)


def _highest(names: Any) -> int | None:
    return max((int(name) for name in names if re.fullmatch("[1-9][0-9]*", name)), default=None)


def _recorded(runs: Path, job: str) -> dict[str, int]:
    """The runs that a job has chosen, by number of the call."""
    path = _path_of_job(runs, job)
    try:
        return {str(nth): int(number) for nth, number in json.loads(path.read_bytes()).items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path}: {type(error).__name__}: {error}", hint="delete this file", code="run-choice-unreadable"
        ) from error


def _path_of_job(runs: Path, job: str) -> Path:
    return runs / "jobs" / plain_name(job)


def _hold(folder: Path) -> int:
    """The processes of a run share the lock; the kernel releases it for those that die."""
    descriptor = private_file.descriptor(folder / _IN_USE, os.O_RDWR)
    with private_file.if_it_can_lock():
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def _is_in_use(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / _IN_USE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        with private_file.if_it_can_lock():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


# --- a place in a bucket ---


def _choose_in_bucket(base: str, *, name: str, digest: str, length: TrainUnit, job: str | None, nth: int) -> str:
    """Its URI. A job's choice is recorded before anything else, so that late workers find it."""
    runs = f"{base}/{plain_name(name)}-{digest}"
    record = f"jobs/{plain_name(job)}/{nth}" if job is not None else None
    with closing(open_storage(runs)) as storage:
        if record is not None:
            try:
                return f"{runs}/{int(storage.read(record))}"
            except FileNotFoundError:
                pass
        number = _highest(storage.list())
        path = f"{number}/{FINISH}"
        newest = None if number is None else _known_run(number, f"{runs}/{path}", lambda: storage.read(path))
        decision = decide_run(newest, length)
        if record is not None:
            storage.put(record, json.dumps(decision.number).encode())
    return f"{runs}/{decision.number}"


# --- the places of a fit ---


@dataclass(frozen=True, kw_only=True)
class RunPaths:
    """In use by this process until it is closed."""

    folder: Path
    checkpoints: str
    keep_latest: int | None
    keep_best: int
    _stored: str | None  # the run's place in the configured storage
    _held: list[RunFolder]

    def finished(self, progress: BatchProgress, length: TrainUnit) -> None:
        mark_finished(self.folder, progress, length)
        if self._stored is not None:
            with closing(open_storage(self._stored)) as storage:
                storage.put(FINISH, finish_record(progress, length))

    def close(self) -> None:
        for each in self._held:
            each.close()


_fits: Counter[tuple[str, str]] = Counter()  # of this process, by name and hyperparameters


def choose_paths(context: PyTorchTrialContext, plan: FitPlan, trial: TrialFacts | None = None) -> RunPaths:
    """For the next fit of this process. Checkpoints go where the script says; otherwise to a place of the run's own, in
    the storage that the job file names or in the run's folder.

    Workers of a job find it by the job's name; in a world that does not change, the chief chooses. A trial of a search
    has one place for all its fits."""
    if trial is not None:
        return _trial_paths(context, trial)
    exp_conf, job = context.get_experiment_config(), env.job() if env.coordinator_url() else None
    name = str(exp_conf.get("name") or _script_name()) + ("-test" if plan.is_test else "")
    storage = exp_conf.get("checkpoint_storage") or {}
    configured = None if plan.is_test or context.checkpoints else storage_uri(storage)
    folder, stored, held = None, None, []
    if job is not None or context.is_chief:
        digest = digest_of(context.get_hparams())
        _fits[name, digest] += 1
        which: Any = {"name": name, "digest": digest, "length": plan.length, "job": job, "nth": _fits[name, digest]}
        held.append(choose_folder(RUNS, **which))
        folder = str(held[0].path)
        log.debug("%s: %s", folder, held[0].reason)
        if configured is not None and "://" in (base := full_uri(configured)):
            stored = _choose_in_bucket(base, **which)
        elif configured is not None:
            held.append(choose_folder(base, **which))
            stored = str(held[1].path)
    folder = context.agree(folder)
    stored = None if configured is None else context.agree(stored)
    latest, best = _kept(storage)
    return RunPaths(
        folder=Path(folder),
        checkpoints=context.checkpoints or stored or f"{folder}/checkpoints",
        keep_latest=latest,
        keep_best=best,
        _stored=stored if held else None,
        _held=held,
    )


def _trial_paths(context: PyTorchTrialContext, trial: TrialFacts) -> RunPaths:
    """By the trial's own name, wherever it is started: no other trial has this place, and a parked one finds it again.
    Checkpoints that the script gives a place are in a folder of the trial's own there."""
    storage = context.get_experiment_config().get("checkpoint_storage") or {}
    name = plain_name(trial_key(trial))
    folder = private_file.make_folder(trial_folder(trial))
    base = context.checkpoints or storage_uri(storage)
    latest, best = _kept(storage)
    return RunPaths(
        folder=folder,
        checkpoints=f"{folder}/checkpoints" if base is None else f"{full_uri(base)}/{name}",
        keep_latest=latest,
        keep_best=best,
        _stored=None,
        _held=[],
    )


def _kept(storage: Any) -> tuple[int | None, int]:
    """How many of the latest checkpoints, and of the best; the newest is never deleted."""
    kept = storage if isinstance(storage, Mapping) else {}
    latest = kept.get("save_trial_latest", 2)
    best = max(kept.get("save_trial_best", 1), kept.get("save_experiment_best", 0))  # all of these may be this trial's
    return None if latest is None else max(latest, 1), best


def storage_uri(storage: Any) -> str | None:
    """The directory or URL that `checkpoint_storage` names."""
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
    raise UsageError(
        f"checkpoint_storage.type: {kind!r}",
        hint="use directory, shared_fs, s3, gcs or azure",
        code="checkpoint-storage-unknown",
    )


def _script_name() -> str:
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(main).stem if main else "notebook"
