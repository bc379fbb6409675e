"""From a checkpoint's UUID to its place: one small file for each, in this user's folder.

The UUID is computed from the place and the step, so all workers compute the same without exchanging a message. The
index only remembers places; the storage alone knows which checkpoints still exist. Runs without torch."""

from __future__ import annotations

import os
import uuid as uuids
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from everstep import env
from everstep.checkpoint import catalog
from everstep.checkpoint.policy import Found
from everstep.checkpoint.strict_json import parse, parse_json
from everstep.errors import NoCheckpoint, UsageError
from everstep.record.trial import current_trial, trial_key
from everstep.storage import private_file
from everstep.storage.base import Storage, full_uri, open_storage


@dataclass(frozen=True, slots=True)
class _JobPlace:
    uri: str


@dataclass(frozen=True, slots=True)
class _Place(_JobPlace):
    step: int


def checkpoint_uuid(uri: str | os.PathLike[str], step: int) -> str:
    return str(uuids.uuid5(uuids.NAMESPACE_URL, f"{full_uri(uri)}#{step}"))


def record(uuid: str, uri: str | os.PathLike[str], step: int) -> None:
    """Remember it for `find`. In a job, also remember the place for `latest`."""
    private_file.write_json(_path(uuid), {"uri": full_uri(uri), "step": step})
    remember_job(uri)


def remember_job(uri: str | os.PathLike[str]) -> None:
    """From now on `latest` looks there, in all workers of the job. Does nothing outside a job."""
    if env.coordinator_url() is not None:
        private_file.write_json(_path_of_job(env.job()), {"uri": full_uri(uri)})


def find(uuid: str) -> tuple[str, int]:
    """The place and step of that checkpoint; NoCheckpoint if it was never recorded here, or was deleted."""
    path = _path(uuid)
    try:
        found: _Place = parse(_Place, parse_json(path.read_bytes(), str(path)), str(path))
    except FileNotFoundError:
        known = len(list(path.parent.glob("*.json")))
        raise NoCheckpoint(
            f"unknown checkpoint {uuid}; {path.parent} lists {known} others",
            hint=f"is it another user's or machine's? Set {env.HOME} to the folder where it was recorded, or load it "
            "by its place: everstep.Checkpointer(uri).load(step)",
            code="checkpoint-uuid-unknown",
        ) from None
    with closing(open_storage(found.uri)) as storage:
        newest_of_step(storage, found.step, uuid)
    return found.uri, found.step


def newest_of_step(storage: Storage, step: int, uuid: str) -> Found:
    """The checkpoint that `Checkpointer.load(step)` takes."""
    there = catalog.find(storage)
    for each in reversed(there):
        if each.step == step and each.manifest is not None:
            return each
    kept = ", ".join(str(each.step) for each in there if each.is_whole) or "none"
    raise NoCheckpoint(
        f"checkpoint {uuid} was deleted: {storage.uri} has no step {step}, only {kept}",
        hint="keep_latest and keep_best decide which are kept: keep more, or use one of those",
        code="checkpoint-deleted",
    )


def latest() -> str | None:
    """The UUID of the newest whole checkpoint of this job, which `find` then knows; None if this node knows of none."""
    if (uri := place_of_job(env.job())) is None:
        return None
    with closing(open_storage(uri)) as storage:
        whole = [each for each in catalog.find(storage) if each.is_whole]
    if not whole:
        return None
    uuid = checkpoint_uuid(uri, whole[-1].step)
    record(uuid, uri, whole[-1].step)  # another node has saved it, perhaps a moment ago
    return uuid


def place_of_job(job: str) -> str | None:
    """Where that job, started in this folder, saves; None if it has not saved here."""
    path = _path_of_job(job)
    try:
        place: _JobPlace = parse(_JobPlace, parse_json(path.read_bytes(), str(path)), str(path))
    except FileNotFoundError:
        return None
    return place.uri


def check_uuid(text: str) -> str:
    """In the form that the index uses."""
    try:
        return str(uuids.UUID(text))
    except (ValueError, AttributeError, TypeError):
        raise UsageError(
            f"not a checkpoint UUID: {text!r}",
            hint="use one that the training has printed; it has 36 characters",
            code="checkpoint-uuid-invalid",
        ) from None


def _path(uuid: str) -> Path:
    return env.home() / "checkpoints" / f"{check_uuid(uuid)}.json"


def _path_of_job(job: str) -> Path:
    # With the directory: another script elsewhere may have the same --job. A trial of a search may be anywhere.
    trial = current_trial()
    name = uuids.uuid5(uuids.NAMESPACE_URL, f"{Path.cwd()}#{job}" if trial is None else trial_key(trial))
    return env.home() / "jobs" / f"{name}.json"
