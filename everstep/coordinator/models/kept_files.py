"""The files of checkpoints where they were saved: mark those that are registered, list them, remove some.

Blocking. The coordinator acts on what it can reach; a folder that is not on this machine is elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from enum import Enum
from typing import TypeVar

from everstep.checkpoint import catalog, keep_mark
from everstep.checkpoint.file_patterns import matching
from everstep.checkpoint.manifest import MANIFEST, CheckpointKey
from everstep.coordinator.experiments.facts import CheckpointRecord
from everstep.coordinator.experiments.sweeping import is_reached, key_of
from everstep.storage.base import Storage, open_storage

T = TypeVar("T")

log = logging.getLogger(__name__)


class Marking(Enum):
    MARKED = "marked"
    GONE = "gone"
    OUT_OF_REACH = "out of reach"


def mark(checkpoint: CheckpointRecord, why: str) -> Marking:
    """From now on, no job deletes it."""
    is_there = _reaching(checkpoint, lambda storage, key: keep_mark.put(storage, key, why))
    if is_there is None:
        return Marking.OUT_OF_REACH
    return Marking.MARKED if is_there else Marking.GONE


def unmark(checkpoint: CheckpointRecord) -> None:
    _reaching(checkpoint, keep_mark.remove)


def files_of(checkpoint: CheckpointRecord) -> dict[str, int] | None:
    """None: out of reach."""
    return _reaching(checkpoint, catalog.files_of)


def remove_files(checkpoint: CheckpointRecord, globs: Sequence[str]) -> dict[str, int] | None:
    """The files that are left: none if nothing but the manifest would be. None: out of reach."""

    def remove(storage: Storage, key: CheckpointKey) -> dict[str, int]:
        there = catalog.files_of(storage, key)
        gone = set(matching(there, globs))
        left = {name: size for name, size in there.items() if name not in gone}
        if not left.keys() - {MANIFEST}:
            catalog.delete(storage, key)
            return {}
        for name in sorted(gone):
            storage.delete(f"{key.folder}/{name}")
        return left

    return _reaching(checkpoint, remove)


def _reaching(checkpoint: CheckpointRecord, act: Callable[[Storage, CheckpointKey], T]) -> T | None:
    try:
        with closing(open_storage(checkpoint.uri)) as storage:
            return act(storage, key_of(checkpoint)) if is_reached(storage) else None
    except Exception as error:  # a worker wrote the URI: no error of a driver may end the coordinator
        log.warning("checkpoint %s in %s: %s: %s", checkpoint.uuid, checkpoint.uri, type(error).__name__, error)
        return None
