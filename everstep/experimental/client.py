"""`everstep.experimental.client`: `get_checkpoint(uuid)` gives a checkpoint's code as a local folder, wherever the
checkpoint is stored.

    path = client.get_checkpoint(uuid)
    with everstep.import_from_path(path + "/code/"):
        import model_def

The folder is made once for each checkpoint, under a temporary name, and then renamed. Its `checkpoint.json` says where
the state is: `everstep.Checkpointer(path.uri).load(path.step)`. Runs without torch."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from everstep import env
from everstep.checkpoint import code_snapshot, index
from everstep.storage import private_file
from everstep.storage.base import Storage, open_storage

DESCRIPTION = "checkpoint.json"

log = logging.getLogger("everstep.checkpoint")


class CheckpointPath(str):
    """The path of a local folder with `code/` and `checkpoint.json`, and which checkpoint it belongs to."""

    uuid: str
    uri: str
    step: int

    def __new__(cls, path: str | os.PathLike[str], *, uuid: str, uri: str, step: int) -> CheckpointPath:
        self = super().__new__(cls, os.fspath(path))
        self.uuid, self.uri, self.step = uuid, uri, step
        return self

    def download(self, path: str | os.PathLike[str] | None = None) -> CheckpointPath:
        """The folder, which is already local; with a `path`, a copy there."""
        if path is None:
            return self
        shutil.copytree(self, path, dirs_exist_ok=True)
        return CheckpointPath(path, uuid=self.uuid, uri=self.uri, step=self.step)


def get_checkpoint(uuid: str) -> CheckpointPath:
    """The checkpoint with that uuid, which the training prints; NoCheckpoint if it is unknown or was deleted."""
    uuid = index.check_uuid(uuid)
    uri, step = index.find(uuid)
    with contextlib.closing(open_storage(uri)) as storage:
        manifest = index.newest_of_step(storage, step, uuid).manifest
        assert manifest is not None
        wanted = {"uuid": uuid, "uri": uri, "step": step, "code": (manifest.code or {}).get("sha256")}
        folder = env.home() / "cache" / uuid
        if _description(folder) != wanted:
            _create(folder, wanted, storage, manifest.code)
    return CheckpointPath(folder, uuid=uuid, uri=uri, step=step)


def _description(folder: Path) -> Any:
    try:
        return json.loads((folder / DESCRIPTION).read_bytes())
    except (OSError, ValueError):
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
            if _description(folder) != wanted:  # otherwise another process was quicker
                _put_in_place(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _put_in_place(aside: Path, folder: Path) -> None:
    """Replaces a folder of an earlier checkpoint that was saved at the same place with the same step."""
    former = aside.with_name(f"{aside.name}-former")
    with contextlib.suppress(FileNotFoundError):
        os.rename(folder, former)
    os.rename(aside, folder)
    shutil.rmtree(former, ignore_errors=True)
