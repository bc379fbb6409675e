"""The checkpoints of all jobs by UUID: where each one is, its metric, and its trial."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from everstep import wire
from everstep.coordinator.experiments.experiments import Experiments
from everstep.coordinator.experiments.facts import DELETED, CheckpointRecord, Trial
from everstep.coordinator.experiments.retention import best_first
from everstep.coordinator.experiments.trial_calls import trial_key
from everstep.coordinator.experiments.views import checkpoint_view
from everstep.coordinator.store.experiment_rows import (
    Changes,
    read_checkpoint,
    read_checkpoints,
    read_latest_checkpoint,
    read_lent,
    read_these_checkpoints,
    read_trial_key,
    write_changes,
)
from everstep.coordinator.store.model_rows import read_metadata, read_registered
from everstep.coordinator.store.store import Store
from everstep.errors import UNKNOWN, Refused
from everstep.search.config import is_smaller_better


class CheckpointRecords:
    def __init__(self, store: Store, experiments: Experiments) -> None:
        self._store, self._experiments, self._reader = store, experiments, experiments.reader
        self.on_report: Callable[[str], None] = lambda _job: None
        self.registering = asyncio.Lock()  # while a checkpoint becomes a version of a model, or stops being one

    async def report(self, job: str, message: wire.CheckpointReport) -> None:
        known = await self._reader.read(lambda connection: read_checkpoint(connection, message.uuid))
        if known is not None and known.job != job:
            raise Refused(
                f"checkpoint {message.uuid} belongs to job {known.job}, not {job}", code="checkpoint-of-another"
            )
        experiment, trial = trial_key(job) or (0, 0)
        given = {name: getattr(message, name) for name in asdict(message)}
        made = CheckpointRecord(
            job=job, experiment=experiment, trial=trial, metric=None, created_at=time.time(), **given
        )
        if known is not None:
            digest = made.digest or known.digest
            made = replace(made, created_at=known.created_at, metric=known.metric, state=known.state, digest=digest)
        live = await self._experiments.find(experiment) if experiment else None
        if live is None or trial not in live.trials:
            await self._store.write(lambda connection: write_changes(connection, Changes(checkpoints=[made])))
            self.on_report(job)
            return
        async with live.lock:
            if made.metric is None:
                made = replace(made, metric=message.metrics.get(live.config.metric, live.metric_at(trial, made.step)))
            changed = live.with_checkpoint(live.trials[trial], made)
            await self._experiments.commit(live, changed=[changed], checkpoints=[made])

    async def view(self, uuid: str) -> wire.SavedCheckpoint:
        return (await self._views([await self.find(uuid)]))[0]

    async def views(self, uuids: Sequence[str]) -> dict[str, wire.SavedCheckpoint]:
        found = await self._reader.read(lambda connection: read_these_checkpoints(connection, uuids))
        return {each.uuid: each for each in await self._views(found)}

    async def _views(self, found: Sequence[CheckpointRecord]) -> list[wire.SavedCheckpoint]:
        uuids = [each.uuid for each in found]
        metadata = await self._reader.read(lambda connection: read_metadata(connection, uuids))
        registered = await self._reader.read(lambda connection: read_registered(connection, uuids))
        return [checkpoint_view(each, metadata.get(each.uuid, {}), registered.get(each.uuid, ())) for each in found]

    async def latest(self, job: str) -> wire.SavedCheckpoint:
        found = await self._reader.read(lambda connection: read_latest_checkpoint(connection, job))
        if found is None:
            raise Refused(f"job {job} has reported no checkpoint", status=UNKNOWN, code="checkpoint-unknown")
        return (await self._views([found]))[0]

    async def of_experiment(
        self, number: int, start: int, limit: int, sort: str, trial: int = 0
    ) -> wire.CheckpointList:
        """`trial`: only of this one; 0: of all."""
        facts = await self._experiments.facts(number)
        found = await self._reader.read(lambda it: [*read_checkpoints(it, number), *read_lent(it, number)])
        found = [each for each in found if trial in (0, each.trial)]
        if sort == "metric":
            best = best_first(found, smaller_is_better=is_smaller_better(facts.spec.searcher))
            found = [*best, *(each for each in found if each.metric is None)]
        views = await self._views(found[start : start + limit])
        return wire.CheckpointList(checkpoints=views, num_found=len(found))

    async def warm_start(self, spec: wire.ExperimentSpec) -> dict[str, Any]:
        """The checkpoint that all trials start from. Hold the lock `choosing`."""
        uuid = spec.source_checkpoint_uuid or spec.searcher.get("source_checkpoint_uuid") or ""
        if not uuid and (trial_id := spec.source_trial_id or spec.searcher.get("source_trial_id")):
            uuid = await self._latest_of(trial_id)
        return await self.start_from(uuid, lambda _trial: bool(spec.verifies)) if uuid else {}

    async def start_from(self, uuid: str, is_ending: Callable[[Trial], bool]) -> dict[str, Any]:
        """`is_ending`: whether an open trial has stopped training. A training trial may delete its checkpoints."""
        found = await self.find_there(uuid)
        await self._check_over(found, is_ending)
        return {"uuid": uuid, "uri": found.uri, "step": found.step}

    async def _check_over(self, checkpoint: CheckpointRecord, is_ending: Callable[[Trial], bool]) -> None:
        live = await self._experiments.find(checkpoint.experiment) if checkpoint.experiment else None
        trial = None if live is None else live.trials.get(checkpoint.trial)
        if live is None or trial is None or trial.is_over or is_ending(trial):
            return
        raise Refused(
            f"checkpoint {checkpoint.uuid} belongs to trial {trial.number} of experiment {live.number}, which is not "
            f"over (it has trained for {trial.length} {live.config.unit}) and may still delete it; wait for it "
            f"(everstep e wait {live.number}), or end it (everstep e cancel {live.number}; in a search program: Close)",
            code="checkpoint-of-open-trial",
        )

    async def _latest_of(self, trial_id: int) -> str:
        key = await self._reader.read(lambda connection: read_trial_key(connection, trial_id))
        if key is None:
            text = f"source_trial_id: there is no trial with the ID {trial_id}"
            raise Refused(text, status=UNKNOWN, code="trial-unknown")
        saved = await self._reader.read(lambda connection: read_checkpoints(connection, *key))
        there = [each for each in saved if self._is_there(each)]
        if not there:
            raise Refused(
                f"source_trial_id: trial {trial_id} has no checkpoint; choose another trial", code="checkpoint-missing"
            )
        return there[-1].uuid

    def _is_there(self, checkpoint: CheckpointRecord) -> bool:
        """Whether it exists, and stays while the lock `choosing` is held."""
        return checkpoint.state != DELETED and checkpoint.uuid not in self._experiments.sweeper.going

    async def find_there(self, uuid: str) -> CheckpointRecord:
        """One that was not deleted; it stays while the lock `choosing` is held."""
        found = await self.find(uuid)
        if not self._is_there(found):
            raise Refused(f"checkpoint {uuid} was deleted; choose another", code="checkpoint-deleted")
        return found

    async def find(self, uuid: str) -> CheckpointRecord:
        found = await self._reader.read(lambda connection: read_checkpoint(connection, uuid))
        if found is None:
            raise Refused(f"there is no checkpoint {uuid[:64]}", status=UNKNOWN, code="checkpoint-unknown")
        return found
