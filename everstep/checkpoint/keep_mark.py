"""A mark beside a checkpoint's folder, for those who do not know the coordinator: no keep rule deletes it.

The coordinator puts it there when a checkpoint is registered as a model's version, and takes it away again. A job that
trains reads it whenever it deletes older checkpoints. Runs without torch."""

from __future__ import annotations

from collections.abc import Iterable

from everstep.checkpoint.manifest import MANIFEST, CheckpointKey, parse_folder
from everstep.storage.base import Storage

_SUFFIX = ".keep"


def mark_of(key: CheckpointKey) -> str:
    """The name of its file."""
    return f"{key.folder}{_SUFFIX}"


def marked(names: Iterable[str]) -> set[CheckpointKey]:
    """Of the names in a storage's root."""
    keys = (parse_folder(name.removesuffix(_SUFFIX)) for name in names if name.endswith(_SUFFIX))
    return {key for key in keys if key is not None}


def put(storage: Storage, key: CheckpointKey, why: str) -> bool:
    """Whether the checkpoint is there: marked first, so that it stays."""
    storage.put(mark_of(key), f"{why}\n".encode())
    if MANIFEST in storage.list(key.folder):
        return True
    storage.delete(mark_of(key))
    return False


def remove(storage: Storage, key: CheckpointKey) -> None:
    storage.delete(mark_of(key))
