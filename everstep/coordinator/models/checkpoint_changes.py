"""User calls that change checkpoints: what people write on them, and removing their files.

A checkpoint belongs to its experiment's owner; that of a job without an experiment, to everyone whose role allows it.
One that is registered, or that a trial needs, is not removed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from sqlalchemy import Connection

from everstep import wire
from everstep.coordinator.experiments.checkpoint_records import CheckpointRecords
from everstep.coordinator.experiments.experiments import Experiments
from everstep.coordinator.experiments.facts import DELETED, CheckpointRecord
from everstep.coordinator.experiments.owners import check_may_change
from everstep.coordinator.models.facts import changed_metadata, registered_text
from everstep.coordinator.models.kept_files import files_of, remove_files
from everstep.coordinator.models.model_calls import IsOver
from everstep.coordinator.store.experiment_rows import Changes, read_borrowed, write_changes
from everstep.coordinator.store.model_rows import read_metadata, read_registered, write_metadata
from everstep.coordinator.store.store import Store
from everstep.errors import CONFLICT, Refused
from everstep.wire.tokens import Token
from everstep.wire.trials import PARTIALLY_DELETED


class CheckpointChanges:
    def __init__(
        self, store: Store, experiments: Experiments, checkpoints: CheckpointRecords, is_job_over: IsOver
    ) -> None:
        self._store, self._experiments, self._checkpoints = store, experiments, checkpoints
        self._is_job_over = is_job_over

    async def change(self, uuid: str, message: wire.CheckpointChange, caller: Token) -> wire.SavedCheckpoint:
        await self._changeable(uuid, caller)

        def write(connection: Connection) -> None:
            before = read_metadata(connection, [uuid]).get(uuid, {})
            after = changed_metadata(before, message.set_metadata, message.remove_metadata)
            write_metadata(connection, uuid, after)

        await self._store.write(write)
        return await self._checkpoints.view(uuid)

    async def files(self, uuid: str) -> wire.CheckpointFiles:
        checkpoint = await self._checkpoints.find(uuid)
        found = {} if checkpoint.state == DELETED else await asyncio.to_thread(files_of, checkpoint)
        if found is None:
            raise _out_of_reach(checkpoint)
        return wire.CheckpointFiles(files=found)

    async def remove(self, uuid: str, message: wire.CheckpointRemoval, caller: Token) -> wire.SavedCheckpoint:
        checkpoint = await self._changeable(uuid, caller)
        if checkpoint.state == DELETED:
            return await self._checkpoints.view(uuid)
        if not await self._is_job_over(checkpoint.job):
            raise Refused(
                f"checkpoint {uuid} belongs to job {checkpoint.job}, which is not over and may continue from it; wait "
                "until it is over, or end it",
                status=CONFLICT,
                code="checkpoint-of-open-job",
            )
        sweeper = self._experiments.sweeper
        async with self._checkpoints.registering:
            async with self._experiments.choosing:
                await self._check_unused(uuid)
                sweeper.going |= {uuid}
            try:
                await self._remove(checkpoint, message)
            finally:
                sweeper.going -= {uuid}
        return await self._checkpoints.view(uuid)

    async def _remove(self, checkpoint: CheckpointRecord, message: wire.CheckpointRemoval) -> None:
        before = await asyncio.to_thread(files_of, checkpoint)
        left = None if before is None else await asyncio.to_thread(remove_files, checkpoint, message.globs)
        if left is None:
            raise _out_of_reach(checkpoint)
        if left == before:
            return
        state = PARTIALLY_DELETED if left else DELETED
        after = replace(checkpoint, state=state, num_bytes=sum(left.values()))
        await self._store.write(lambda connection: write_changes(connection, Changes(checkpoints=[after])))

    async def _check_unused(self, uuid: str) -> None:
        def read(connection: Connection) -> tuple[list[wire.RegisteredAs], bool]:
            registered = read_registered(connection, [uuid]).get(uuid, [])
            return registered, uuid in read_borrowed(connection)

        registered, is_borrowed = await self._experiments.reader.read(read)
        if registered:
            text = (
                f"checkpoint {uuid} is registered as {registered_text({uuid: registered})}; delete that version first"
            )
            raise Refused(text, status=CONFLICT, code="checkpoint-registered")
        if is_borrowed or uuid in self._experiments.begun_with():
            text = f"checkpoint {uuid} is in use: a trial of another experiment starts from it, or has taken it over"
            raise Refused(text, status=CONFLICT, code="checkpoint-in-use")

    async def _changeable(self, uuid: str, caller: Token) -> CheckpointRecord:
        checkpoint = await self._checkpoints.find(uuid)
        if checkpoint.experiment:
            check_may_change(await self._experiments.facts(checkpoint.experiment), caller)
        return checkpoint


def _out_of_reach(checkpoint: CheckpointRecord) -> Refused:
    return Refused(
        f"the coordinator cannot reach checkpoint {checkpoint.uuid} in {checkpoint.uri}, where job {checkpoint.job} "
        "saved it; on that machine, use everstep checkpoint list and prune",
        status=CONFLICT,
        code="checkpoint-out-of-reach",
    )
