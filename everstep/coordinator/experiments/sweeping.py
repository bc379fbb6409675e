"""Delete the checkpoints that an experiment does not keep, once it is over: files first, then their records.

The coordinator deletes what it can reach, in a thread. What it cannot reach stays, and the experiment's reason says
so. An interrupted sweep begins again at the next start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

from sqlalchemy import Connection

from everstep import wire
from everstep.checkpoint import catalog
from everstep.checkpoint.manifest import CheckpointKey
from everstep.coordinator.experiments.facts import DELETED, CheckpointRecord, Experiment
from everstep.coordinator.experiments.retention import decide_deletion
from everstep.coordinator.store.experiment_rows import (
    Changes,
    mark_deleted,
    read_borrowed,
    read_checkpoints,
    read_experiment,
    write_changes,
)
from everstep.coordinator.store.store import Store
from everstep.errors import EverstepError
from everstep.storage.base import Storage, open_storage
from everstep.storage.database import StoreError
from everstep.storage.local import LocalStorage

log = logging.getLogger(__name__)

_NONE = wire.CheckpointsKept(experiment_best=0, trial_best=0, trial_latest=0)
_PAUSE_S = 5.0


class CheckpointSweeper:
    def __init__(self, store: Store, active: Callable[[], Sequence[Experiment]]) -> None:
        """`active`: experiments that are not over, which may begin with others' checkpoints."""
        self._store, self._active = store, active

    async def sweep(self, number: int) -> None:
        while True:
            try:
                return await self._sweep(number)
            except StoreError as error:
                log.error("experiment %d: %s", number, error)
                await asyncio.sleep(_PAUSE_S)

    async def _sweep(self, number: int) -> None:
        def read(connection: Connection) -> tuple[Experiment | None, list[CheckpointRecord], set[str]]:
            found = read_checkpoints(connection, number)
            return read_experiment(connection, number), found, read_borrowed(connection)

        experiment, found, used = await self._store.in_thread(lambda: self._store.read(read))
        if experiment is None or not experiment.needs_sweep:
            return
        used |= {each.warm_start.get("uuid", "") for each in self._active()}
        kept = _NONE if experiment.state == DELETED else experiment.kept
        smaller = bool(experiment.spec.searcher.get("smaller_is_better", True))
        gone = set(decide_deletion(found, kept, smaller_is_better=smaller, used=used))
        deleted, left = await asyncio.to_thread(delete_files, [each for each in found if each.uuid in gone])
        reason = f"; {left} checkpoints could not be reached, and were not deleted" if left else ""

        def write(connection: Connection) -> None:
            mark_deleted(connection, deleted)
            now = read_experiment(connection, number)  # people may have changed it meanwhile
            if now is not None:
                is_changed = (now.state, now.kept) != (experiment.state, experiment.kept)
                swept = replace(now, needs_sweep=is_changed, reason=now.reason + reason)
                write_changes(connection, Changes(experiment=swept))

        await self._store.write(write)
        if deleted:
            log.info("experiment %d: deleted %d of %d checkpoints", number, len(deleted), len(found))


def delete_files(checkpoints: Sequence[CheckpointRecord]) -> tuple[list[str], int]:
    """The UUIDs of those that are gone now, and the number of those that could not be reached. Some were gone before:
    a trial deletes what it does not keep while it trains, and a sweep may be interrupted."""
    gone: list[str] = []
    for each in checkpoints:
        key = CheckpointKey(generation=each.generation, step=each.step)
        try:
            with closing(open_storage(each.uri)) as storage:
                if _is_reached(storage):
                    catalog.delete(storage, key)
                    gone.append(each.uuid)
        except (EverstepError, OSError) as error:
            log.warning("checkpoint %s: %s", each.uuid, error)
    return gone, len(checkpoints) - len(gone)


def _is_reached(storage: Storage) -> bool:
    """A folder that is not here is another machine's."""
    return not isinstance(storage, LocalStorage) or storage.root.is_dir()
