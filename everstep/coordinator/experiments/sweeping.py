"""Delete the checkpoints that an experiment does not keep, once it is over: files first, then their records. If the
experiment itself was deleted, also delete the jobs of its trials, with their logs and metrics.

The coordinator deletes what it can reach, in a thread. What it cannot reach stays, and the experiment's reason says
so. Checkpoints that other experiments use stay until none uses them, and versions of models until they are deleted. An
interrupted sweep begins again at the next start. Once the sweep has decided to delete a checkpoint, no trial can start
from it, and no model can register it: that decision and each such choice hold the same lock."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
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
    read_trial_jobs,
    write_changes,
)
from everstep.coordinator.store.model_rows import read_registered_of
from everstep.coordinator.store.store import Store
from everstep.search.config import is_smaller_better
from everstep.storage.base import Storage, open_storage
from everstep.storage.database import StoreError
from everstep.storage.local import LocalStorage

log = logging.getLogger(__name__)

_NONE = wire.CheckpointsKept(experiment_best=0, trial_best=0, trial_latest=0)
_PAUSE_S = 5.0
_LEFT = "; checkpoints not deleted, because the coordinator cannot reach them: "


class CheckpointSweeper:
    def __init__(
        self,
        store: Store,
        begun_with: Callable[[], Collection[str]],
        choosing: asyncio.Lock,
        remove_job: Callable[[str], Awaitable[object]],
    ) -> None:
        """`begun_with`: UUIDs of the checkpoints that open trials start from. `choosing`: the lock described above."""
        self._store, self._begun_with, self._choosing, self._remove_job = store, begun_with, choosing, remove_job
        self.lenders: set[int] = set()  # experiments to sweep again when another one ends or is deleted
        self.going: frozenset[str] = frozenset()  # UUIDs: decided, not marked yet
        self.num_decisions = 0

    async def sweep(self, number: int) -> None:
        while True:
            try:
                return await self._sweep(number)
            except StoreError as error:
                log.error("experiment %d: %s", number, error)
                await asyncio.sleep(_PAUSE_S)

    async def _sweep(self, number: int) -> None:
        await self._note_absent(number)
        decided = await self._decide(number)
        if decided is None:
            return
        experiment, found, gone = decided
        try:
            if experiment.state == DELETED:
                await self._remove_jobs(number)
            await self._delete(experiment, found, gone)
        finally:
            self.going -= gone

    async def _note_absent(self, number: int) -> None:
        """What its trials have deleted while they trained: kept as the best, it would cost the best that is there."""
        found = await self._store.in_thread(lambda: self._store.read(lambda it: read_checkpoints(it, number)))
        there = [each for each in found if each.state != DELETED]
        if absent := await asyncio.to_thread(find_absent, there):
            await self._store.write(lambda connection: mark_deleted(connection, absent))

    async def _decide(self, number: int) -> tuple[Experiment, list[CheckpointRecord], frozenset[str]] | None:
        """The experiment, its checkpoints, and which of them to delete."""

        def read(connection: Connection) -> tuple[Experiment | None, list[CheckpointRecord], set[str], set[str]]:
            found, registered = read_checkpoints(connection, number), set(read_registered_of(connection, number))
            return read_experiment(connection, number), found, read_borrowed(connection), registered

        self.lenders.add(number)  # before reading: another one may end meanwhile
        async with self._choosing:
            experiment, found, used, registered = await self._store.in_thread(lambda: self._store.read(read))
            if experiment is None or not experiment.needs_sweep:
                self.lenders.discard(number)
                return None
            used.update(self._begun_with())
            kept = _NONE if experiment.state == DELETED else experiment.kept
            smaller = is_smaller_better(experiment.spec.searcher)
            unwanted = frozenset(decide_deletion(found, kept, smaller_is_better=smaller, used=registered))
            gone = unwanted - used
            if gone == unwanted:
                self.lenders.discard(number)
            self.going |= gone
            self.num_decisions += 1
        return experiment, found, gone

    async def _delete(self, experiment: Experiment, found: list[CheckpointRecord], gone: Collection[str]) -> None:
        deleted, left = await asyncio.to_thread(delete_files, [each for each in found if each.uuid in gone])
        told = f"{_LEFT}{left}" if left else ""

        def write(connection: Connection) -> None:
            mark_deleted(connection, deleted)
            now = read_experiment(connection, experiment.number)  # people may have changed it meanwhile
            if now is not None:
                is_changed = (now.state, now.kept) != (experiment.state, experiment.kept)
                needs_sweep = is_changed or now.number in self.lenders
                swept = replace(now, needs_sweep=needs_sweep, reason=now.reason.partition(_LEFT)[0] + told)
                write_changes(connection, Changes(experiment=swept))

        await self._store.write(write)
        if deleted:
            log.info("experiment %d: deleted %d of %d checkpoints", experiment.number, len(deleted), len(found))

    async def _remove_jobs(self, number: int) -> None:
        jobs = await self._store.in_thread(lambda: self._store.read(lambda it: read_trial_jobs(it, number)))
        for job in jobs:
            await self._remove_job(job)
        if jobs:
            log.info("experiment %d: removed %d jobs, with their logs and metrics", number, len(jobs))


def delete_files(checkpoints: Sequence[CheckpointRecord]) -> tuple[list[str], int]:
    """The UUIDs of deleted checkpoints, and the number of unreachable ones. Some may already be gone: trials delete
    checkpoints while they train, and a sweep may be interrupted."""
    gone: list[str] = []
    for each in checkpoints:
        try:
            with closing(open_storage(each.uri)) as storage:
                if is_reached(storage):
                    catalog.delete(storage, key_of(each))
                    gone.append(each.uuid)
        except Exception as error:  # a worker wrote the URI: no error of a driver may end the coordinator
            log.warning("checkpoint %s in %s: %s: %s", each.uuid, each.uri, type(error).__name__, error)
    return gone, len(checkpoints) - len(gone)


def find_absent(checkpoints: Sequence[CheckpointRecord]) -> list[str]:
    """The UUIDs of those that are not where they were saved, as far as that place is reached."""
    absent: list[str] = []
    places = defaultdict[str, list[CheckpointRecord]](list)
    for each in checkpoints:
        places[each.uri].append(each)
    for uri, its in places.items():
        try:
            with closing(open_storage(uri)) as storage:
                if is_reached(storage):
                    there = storage.list()
                    absent += [each.uuid for each in its if key_of(each).folder not in there]
        except Exception as error:  # as above
            log.warning("checkpoints in %s: %s: %s", uri, type(error).__name__, error)
    return absent


def key_of(checkpoint: CheckpointRecord) -> CheckpointKey:
    return CheckpointKey(generation=checkpoint.generation, step=checkpoint.step)


def is_reached(storage: Storage) -> bool:
    """Whether this machine can reach the URI. A folder that is not here is on another machine."""
    return not isinstance(storage, LocalStorage) or storage.root.is_dir()
