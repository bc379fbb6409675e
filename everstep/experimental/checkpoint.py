"""A checkpoint by its UUID, wherever it was written: as a local folder with its code and, once downloaded, its state.

It is looked up in this user's index, then at the coordinator, which knows the checkpoints of all its jobs, then where
this user's submitted jobs save checkpoints. So it is also found when a job's nodes and coordinator are gone."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep import env, wire
from everstep.checkpoint import code_snapshot, index
from everstep.checkpoint.catalog import files_of
from everstep.checkpoint.download import DESCRIPTION, description, fetch_state
from everstep.errors import UNKNOWN, EverstepError, NoCheckpoint, Refused
from everstep.experimental.enums import CheckpointState, DownloadMode
from everstep.experimental.session import CURRENT
from everstep.experimental.shown_tables import Facts, ShownList, ShownObject, named, time_of
from everstep.jobs import models
from everstep.jobs.coordinator_link import PATIENCE_S
from everstep.jobs.find_checkpoint import find_at, find_in_jobs
from everstep.storage import private_file
from everstep.storage.base import Storage, open_storage

log = logging.getLogger("everstep.checkpoint")

_ASK_S = 15.0  # for a coordinator's restart
_MOST_SHOWN = 8  # places in an error
_ELSEWHERE = "checkpoint-elsewhere"


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointTraining:
    """The trial that saved a checkpoint."""

    experiment_id: int
    trial_id: int
    experiment_config: dict[str, Any]
    hparams: dict[str, Any]
    validation_metrics: dict[str, Any]


class CheckpointPath(str, ShownObject):
    """The path of a local folder with `code/` and `checkpoint.json`, and which checkpoint it belongs to."""

    uuid: str
    uri: str
    step: int

    def __new__(cls, path: str | os.PathLike[str], *, uuid: str, uri: str, step: int) -> CheckpointPath:
        self = super().__new__(cls, os.fspath(path))
        self.uuid, self.uri, self.step = uuid, uri, step
        return self

    def download(
        self, path: str | os.PathLike[str] | None = None, mode: DownloadMode = DownloadMode.AUTO
    ) -> CheckpointPath:
        """The folder with code and state: this one, or with a `path`, a copy there. `Checkpointer(folder).load(step)`
        and `load_trial_from_checkpoint_path(folder)` need nothing else."""
        if path is not None:
            shutil.copytree(self, path, dirs_exist_ok=True)
        target = self if path is None else CheckpointPath(path, uuid=self.uuid, uri=self.uri, step=self.step)
        with contextlib.closing(open_storage(self.uri)) as storage:
            fetch_state(storage, index.newest_of_step(storage, self.step, self.uuid), Path(target))
        return target

    @property
    def view(self) -> wire.SavedCheckpoint | None:
        """What the coordinator knows about it; None: nothing."""
        return _known(self.uuid)

    @property
    def state(self) -> CheckpointState:
        known = self.view
        return CheckpointState.COMPLETED if known is None else CheckpointState(known.state)

    @property
    def experiment_id(self) -> int | None:
        known = self.view
        return None if known is None else known.experiment or None

    @property
    def metadata(self) -> dict[str, Any]:
        """What people have written on it."""
        known = self.view
        return {} if known is None else dict(known.metadata)

    @property
    def training(self) -> CheckpointTraining | None:
        """The trial that saved it; None: it belongs to no experiment."""
        known = self.view
        if known is None or not known.experiment:
            return None
        number, trial = known.experiment, known.trial
        found = CURRENT.link(lambda coordinator: coordinator.trial(number, trial))
        return CheckpointTraining(
            experiment_id=number,
            trial_id=found.trial_id,
            experiment_config=CURRENT.link(lambda coordinator: coordinator.experiment_config(number)).config,
            hparams=dict(found.hparams),
            validation_metrics=dict(known.metrics),
        )

    @property
    def resources(self) -> dict[str, int]:
        """Its files in the storage, with their sizes in bytes."""
        with contextlib.closing(open_storage(self.uri)) as storage:
            return files_of(storage, index.newest_of_step(storage, self.step, self.uuid).key)

    def get_metrics(self) -> dict[str, Any]:
        """The validation metrics at its step."""
        known = self.view
        return {} if known is None else dict(known.metrics)

    def write_metadata_file(self, path: str | os.PathLike[str]) -> None:
        """Write the metadata as JSON."""
        Path(path).write_text(json.dumps(self.metadata, indent=2) + "\n")

    def add_metadata(self, metadata: Mapping[str, Any]) -> None:
        models.change_checkpoint(CURRENT.link, self.uuid, metadata)

    def remove_metadata(self, keys: Iterable[str]) -> None:
        models.change_checkpoint(CURRENT.link, self.uuid, {}, list(keys))

    def delete(self) -> None:
        """Delete its files where it was saved; this folder stays. Refused if it is registered or in use."""
        models.delete_checkpoint(CURRENT.link, self.uuid)

    def remove_files(self, globs: Iterable[str]) -> None:
        """Remove files by pattern, such as `**/optimizer*`. If none is left, the checkpoint is deleted."""
        models.remove_files(CURRENT.link, self.uuid, list(globs))

    def __repr__(self) -> str:
        return f"Checkpoint(uuid={self.uuid}, step={self.step}, path={str(self)!r})"

    def facts(self) -> Facts:
        known = self.view
        facts: list[tuple[str, object]] = [("uuid", self.uuid), ("step", self.step), ("saved in", self.uri)]
        if known is not None:
            facts += [
                ("state", known.state),
                ("experiment", known.experiment or ""),
                ("trial", known.trial or ""),
                ("metrics", named(dict(known.metrics))),
                ("metadata", named(known.metadata)),
                ("registered", ", ".join(f"{each.name} {each.version}" for each in known.registered)),
                ("saved at", time_of(known.created_at)),
            ]
        return [*facts, ("path", str(self))]


def get_checkpoint(uuid: str, *, uri: str | os.PathLike[str] | None = None) -> CheckpointPath:
    """The checkpoint with that UUID, which the training prints; NoCheckpoint if it is unknown or deleted. `uri`: the
    place of a job's checkpoints, as in its job file; needed only if the lookup does not find it."""
    uuid = index.check_uuid(uuid)
    place, step = _find(uuid) if uri is None else _find_at(os.fspath(uri), uuid)
    with contextlib.closing(open_storage(place)) as storage:
        manifest = index.newest_of_step(storage, step, uuid).manifest
        assert manifest is not None
        wanted = {"uuid": uuid, "uri": place, "step": step, "code": (manifest.code or {}).get("sha256")}
        folder = env.home() / "cache" / uuid
        if description(folder) != wanted:
            _create(folder, wanted, storage, manifest.code)
    return CheckpointPath(folder, uuid=uuid, uri=place, step=step)


def reachable(checkpoints: Iterable[wire.SavedCheckpoint], most: int | None = None) -> ShownList[CheckpointPath]:
    """The first ones that this machine can read; the log names the others."""
    found: ShownList[CheckpointPath] = ShownList()
    for each in checkpoints:
        if len(found) == most:
            break
        try:
            found.append(get_checkpoint(each.uuid))
        except NoCheckpoint as error:
            if error.code != _ELSEWHERE:
                raise
            log.warning("left out: %s", error.message)
    return found


def _find(uuid: str) -> tuple[str, int]:
    looked = [f"{env.home() / 'checkpoints'}, for checkpoints of this machine"]
    try:
        return index.find(uuid)
    except NoCheckpoint as unknown:
        if unknown.code != "checkpoint-uuid-unknown":
            raise
    known = _ask(uuid, looked)
    if known is not None and ("://" in known.uri or Path(known.uri).is_dir()):
        return known.uri, known.step
    if (found := find_in_jobs(uuid, looked.append)) is not None:
        return found
    if known is not None:
        raise NoCheckpoint(
            f"checkpoint {uuid} is in {known.uri}, on the machine that saved it (job {known.job})",
            hint="run this on that machine, or save where all machines can read: checkpoint: {uri: s3://…}",
            code=_ELSEWHERE,
        )
    raise _unknown(uuid, looked)


def _find_at(uri: str, uuid: str) -> tuple[str, int]:
    looked: list[str] = []
    if (found := find_at(uri, uuid, looked.append)) is None:
        raise _unknown(uuid, looked)
    return found


def _unknown(uuid: str, looked: list[str]) -> NoCheckpoint:
    more = f", and {len(looked) - _MOST_SHOWN} others" if len(looked) > _MOST_SHOWN else ""
    return NoCheckpoint(
        f"unknown checkpoint {uuid}. Looked in: {'; '.join(looked[:_MOST_SHOWN])}{more}",
        hint=f'give the place of the job\'s checkpoints: get_checkpoint(uuid, uri="s3://bucket/prefix"); or name the '
        f"coordinator that knows it: {env.COORDINATOR} or client.login",
        code="checkpoint-uuid-unknown",
    )


def _ask(uuid: str, looked: list[str]) -> wire.SavedCheckpoint | None:
    where = CURRENT.url or "this machine's coordinator"
    try:
        known = _known(uuid, patience_s=_ASK_S)
    except (EverstepError, OSError) as error:  # it may have ended with its job, or refuse this user
        looked.append(f"{where} ({str(error).splitlines()[0]})")
        return None
    if known is None and CURRENT.has_coordinator:
        looked.append(where)
    return known


def _known(uuid: str, *, patience_s: float = PATIENCE_S) -> wire.SavedCheckpoint | None:
    if not CURRENT.has_coordinator:
        return None
    try:
        return CURRENT.link(lambda coordinator: coordinator.checkpoint(uuid), patience_s=patience_s)
    except Refused as refused:
        if refused.status != UNKNOWN:
            raise
        return None


def _create(folder: Path, wanted: dict[str, Any], storage: Storage, record: dict[str, Any] | None) -> None:
    aside = private_file.make_folder(folder.parent) / f".{folder.name}.{os.getpid()}-{os.urandom(4).hex()}"
    try:
        private_file.make_folder(aside / code_snapshot.FOLDER)
        if record is None:
            log.warning("checkpoint %s was saved without code: its code/ is empty", wanted["uuid"])
        else:
            code_snapshot.restore(storage, record, aside / code_snapshot.FOLDER)
        private_file.write_json(aside / DESCRIPTION, wanted)
        with private_file.locked(folder.parent / "lock"):
            if description(folder) != wanted:  # otherwise another process was faster
                private_file.put_in_place(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
