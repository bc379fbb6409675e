"""Which checkpoint a uuid means: one small file for each, in this user's folder.

A checkpoint's uuid follows from where it is and from its step, so that all workers name it alike without a word to each
other. The index is only a memory of where things are: what is there is said by the storage. Runs without torch."""

from __future__ import annotations

import os
import uuid as uuids
from pathlib import Path

from everstep import env
from everstep.checkpoint import catalog, strict_json
from everstep.checkpoint.catalog import Found
from everstep.errors import NoCheckpoint, UsageError
from everstep.storage import private_file
from everstep.storage.base import Storage, full_uri, open_storage


def checkpoint_uuid(uri: str | os.PathLike[str], step: int) -> str:
    return str(uuids.uuid5(uuids.NAMESPACE_URL, f"{full_uri(uri)}#{step}"))


def record(uuid: str, uri: str | os.PathLike[str], step: int) -> None:
    """Remember it for `find`. In a job also that these are the job's checkpoints, for `latest`."""
    private_file.write_json(_path(uuid), {"uri": full_uri(uri), "step": step})
    remember_job(uri)


def remember_job(uri: str | os.PathLike[str]) -> None:
    """From now on `latest` looks there, in this and in other workers of the job; outside a job nothing is done."""
    if env.coordinator_url() is not None:
        private_file.write_json(_path_of_job(), {"uri": full_uri(uri)})


def find(uuid: str) -> tuple[str, int]:
    """Where that checkpoint is and its step; NoCheckpoint if nobody has recorded it, or it is there no more."""
    path = _path(uuid)
    try:
        found = strict_json.parse_json(path.read_bytes(), str(path))
    except FileNotFoundError:
        known = len(list(path.parent.glob("*.json")))
        raise NoCheckpoint(
            f"no checkpoint {uuid} is known: {known} others are, in {path.parent}",
            hint=f"is it of another user or machine? Set {env.HOME} to the folder in which it was recorded; or load "
            "it by its place: everstep.Checkpointer(uri).load(step)",
        ) from None
    uri, step = strict_json.field(found, "uri", str, str(path)), strict_json.natural(found, "step", str(path))
    storage = open_storage(uri)
    try:
        newest_of_step(storage, step, uuid)
    finally:
        storage.close()
    return uri, step


def newest_of_step(storage: Storage, step: int, uuid: str) -> Found:
    """The checkpoint that `Checkpointer.load(step)` takes."""
    there = catalog.find(storage)
    for each in reversed(there):
        if each.step == step and each.manifest is not None:
            return each
    kept = ", ".join(str(each.step) for each in there if each.is_whole) or "none"
    raise NoCheckpoint(
        f"checkpoint {uuid} is gone: {storage.uri} has no step {step} any more, only {kept}",
        hint="older ones are deleted as keep_latest and keep_best say: keep more, or take one of those",
    )


def latest() -> str | None:
    """The uuid of the newest whole checkpoint of this job; None if there is none, or this node has not heard of one."""
    path = _path_of_job()
    try:
        uri = strict_json.field(strict_json.parse_json(path.read_bytes(), str(path)), "uri", str, str(path))
    except FileNotFoundError:
        return None
    storage = open_storage(uri)
    try:
        whole = [each for each in catalog.find(storage) if each.is_whole]
    finally:
        storage.close()
    return checkpoint_uuid(uri, whole[-1].step) if whole else None


def check_uuid(text: str) -> str:
    """As it is written in the index; anything else is no name of a file of ours."""
    try:
        return str(uuids.UUID(text))
    except (ValueError, AttributeError, TypeError):
        raise UsageError(
            f"{text!r} is no uuid of a checkpoint", hint="take one that the training has printed, with 36 characters"
        ) from None


def _path(uuid: str) -> Path:
    return env.home() / "checkpoints" / f"{check_uuid(uuid)}.json"


def _path_of_job() -> Path:
    # With the directory: somebody may give the same --job to another script elsewhere.
    name = uuids.uuid5(uuids.NAMESPACE_URL, f"{Path.cwd()}#{env.job()}")
    return env.home() / "jobs" / f"{name}.json"
