"""Which folder a training run writes to: `BASE/NAME-DIGEST/1`, `…/2`, one for each run of the same name and
hyperparameters.

The same command continues its newest run until that has come as far as was asked for, and then begins the next one. All
workers of a job write to the same folder, the late ones too: the first choice is remembered. A run that another process
is at just now is left alone. Of a finished run `run.json` tells how far it came. Imports no torch itself."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from everstep.errors import UsageError
from everstep.pytorch.units import BatchProgress, TrainUnit
from everstep.storage import private_file

FINISH = "run.json"
_IN_USE = ".in-use"


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownRun:
    """What is known of a run before another one may begin."""

    number: int
    finished_at: BatchProgress | None = None  # None: it was never finished
    is_in_use: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    number: int
    is_new: bool
    reason: str


def decide(newest: KnownRun | None, length: TrainUnit) -> Decision:
    """Pure. Only the newest run is continued: older ones were left behind on purpose."""
    if newest is None:
        return Decision(number=1, is_new=True, reason="the first run of this name and these hyperparameters")
    number = newest.number
    if newest.is_in_use:
        return Decision(number=number + 1, is_new=True, reason=f"run {number} is in use by another process")
    if newest.finished_at is None:
        return Decision(number=number, is_new=False, reason=f"run {number} is unfinished: it is continued")
    came = f"{length.of(newest.finished_at):g}"
    if length.share(newest.finished_at) < 1:
        reason = f"run {number} came to {came} of {length.value} {length.noun}: it is continued"
        return Decision(number=number, is_new=False, reason=reason)
    reason = f"run {number} has finished with {came} {length.noun}"
    return Decision(number=number + 1, is_new=True, reason=reason)


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """In use by this process until it is closed or the process ends."""

    path: Path
    is_new: bool
    reason: str
    _hold: int = field(repr=False)

    def close(self) -> None:
        os.close(self._hold)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def choose(
    base: str | os.PathLike[str], *, name: str, digest: str, length: TrainUnit, job: str | None = None, nth: int = 1
) -> RunFolder:
    """The folder for a run of that length, made if it is not there.

    In a `job` all workers get the same one, whenever they ask for the `nth` time. Before one may ask for the next, the
    last run must be marked as finished."""
    runs = Path(base).absolute() / f"{plain_name(name)}-{digest}"
    with private_file.locked(runs / ".lock"):
        remembered = _remembered(runs, job, nth) if job is not None else None
        if remembered is not None:
            reason = f"run {remembered} is that of job {job}"
            decision = Decision(number=remembered, is_new=False, reason=reason)
        else:
            decision = decide(_newest(runs, job), length)
        folder = private_file.make_folder(runs / str(decision.number))
        if job is not None and remembered is None:
            _remember(runs, job, nth, decision.number)
        return RunFolder(path=folder, is_new=decision.is_new, reason=decision.reason, _hold=_hold(folder))


def mark_finished(folder: str | os.PathLike[str], progress: BatchProgress, length: TrainUnit) -> None:
    """The run has ended, so far; called by one worker, before the others leave."""
    private_file.write(Path(folder) / FINISH, finish_record(progress, length))


def finish_record(progress: BatchProgress, length: TrainUnit) -> bytes:
    """The content of `run.json`."""
    content = {"unit": length.noun, "value": length.of(progress), "length": length.value, "progress": asdict(progress)}
    return json.dumps(content, indent=1).encode() + b"\n"


def parse_finish(text: bytes, where: str) -> BatchProgress:
    try:
        told = json.loads(text)["progress"]
        counts: dict[str, Any] = {
            name: float(value) if name == "seconds" else int(value) for name, value in told.items()
        }
        return BatchProgress(**counts)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{where} cannot be read: {type(error).__name__}: {error}",
            hint="delete it to continue the run, or its folder",
        ) from error


def plain_name(name: str) -> str:
    """A name for a folder: letters, digits and a few signs."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:64]
    if not plain:
        raise UsageError(f"{name!r} is no name for a run", hint="give letters and digits")
    return plain


def digest_of(hparams: Mapping[str, Any] | None) -> str:
    """6 hexadecimal digits. What is no plain data counts by its type: its text may change from run to run."""
    text = json.dumps(hparams or {}, sort_keys=True, default=lambda value: type(value).__qualname__)
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def _newest(runs: Path, job: str | None) -> KnownRun | None:
    numbers = [int(each.name) for each in runs.iterdir() if each.is_dir() and re.fullmatch("[1-9][0-9]*", each.name)]
    if not numbers:
        return None
    folder = runs / str(max(numbers))
    # Workers of the same job are no strangers, but one of them may have begun a run before.
    is_ours = job is not None and max(numbers) in _choices(runs, job).values()
    return KnownRun(number=max(numbers), finished_at=_finish(folder), is_in_use=not is_ours and _is_in_use(folder))


def _finish(folder: Path) -> BatchProgress | None:
    path = folder / FINISH
    try:
        return parse_finish(path.read_bytes(), str(path))
    except FileNotFoundError:
        return None


# --- what a job has chosen ---


def _remembered(runs: Path, job: str, nth: int) -> int | None:
    number = _choices(runs, job).get(str(nth))
    return number if number is not None and (runs / str(number)).is_dir() else None


def _remember(runs: Path, job: str, nth: int, number: int) -> None:
    private_file.write_json(_path_of_job(runs, job), _choices(runs, job) | {str(nth): number})


def _choices(runs: Path, job: str) -> dict[str, int]:
    path = _path_of_job(runs, job)
    try:
        return {str(nth): int(number) for nth, number in json.loads(path.read_bytes()).items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} cannot be read: {type(error).__name__}: {error}", hint="delete it: the newest run is continued"
        ) from error


def _path_of_job(runs: Path, job: str) -> Path:
    return runs / "jobs" / plain_name(job)


# --- whether somebody is at it ---


def _hold(folder: Path) -> int:
    """Several processes of a run hold it together; the kernel lets go for those that die."""
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
