"""User calls about models: create, look, change, and register checkpoints as their versions.

A registered checkpoint is kept in two ways: the sweep of its experiment leaves it out, and the jobs that save there
obey a mark beside its files. The mark comes first; the version is only written if the checkpoint is there after it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

from sqlalchemy import Connection

from everstep import wire
from everstep.coordinator.experiments.checkpoint_records import CheckpointRecords
from everstep.coordinator.experiments.experiments import Experiments
from everstep.coordinator.experiments.facts import CheckpointRecord
from everstep.coordinator.experiments.owners import check_owner
from everstep.coordinator.models.facts import ModelVersion, RegisteredModel, changed_model, changed_version, distinct
from everstep.coordinator.models.kept_files import Marking, mark, unmark
from everstep.coordinator.store.experiment_rows import note_unswept, read_checkpoint
from everstep.coordinator.store.model_rows import (
    count_versions,
    drop_versions,
    next_model_number,
    read_all_models,
    read_model,
    read_model_request,
    read_registered,
    read_version,
    read_version_of,
    read_versions,
    write_model,
    write_version,
)
from everstep.coordinator.store.store import Store
from everstep.errors import CONFLICT, UNKNOWN, Refused
from everstep.wire.models import MODEL_SORTS
from everstep.wire.tokens import Token

IsOver = Callable[[str], Awaitable[bool]]


class ModelCalls:
    def __init__(
        self, store: Store, experiments: Experiments, checkpoints: CheckpointRecords, is_job_over: IsOver
    ) -> None:
        self._store, self._experiments, self._checkpoints = store, experiments, checkpoints
        self._reader, self._is_job_over = experiments.reader, is_job_over

    # --- models

    async def create(self, new: wire.NewModel, caller: Token) -> wire.ModelView:
        def write(connection: Connection) -> RegisteredModel:
            if (known := read_model_request(connection, new.request)) is not None:
                return _there(known, known.name)
            _check_free(connection, new.name, 0)
            now = time.time()
            model = RegisteredModel(
                number=next_model_number(connection),
                request=new.request,
                name=new.name,
                description=new.description,
                notes=new.notes,
                labels=distinct(new.labels),
                metadata=new.metadata,
                owner=caller.person,
                created_at=now,
                changed_at=now,
            )
            write_model(connection, model)
            return model

        return await self._view(await self._store.write(write))

    async def find(
        self, start: int, limit: int, *, search: str, label: str, sort: str, is_descending: bool, is_archived: bool
    ) -> wire.ModelList:
        if sort not in MODEL_SORTS:
            text = f"cannot sort by {sort!r}: use {', '.join(MODEL_SORTS)}"
            raise Refused(text, status=422, code="parameter-invalid")
        rows = await self._reader.read(read_all_models)
        views = [
            _model_view(model, num_versions)
            for model, num_versions in rows
            if (is_archived or not model.is_archived)
            and (not label or label in model.labels)
            and _mentions(model, search)
        ]
        views.sort(key=lambda each: (getattr(each, sort), each.model), reverse=is_descending)
        return wire.ModelList(models=views[start : start + limit], num_found=len(views))

    async def labels(self) -> wire.ModelLabels:
        counts = Counter(label for model, _ in await self._reader.read(read_all_models) for label in model.labels)
        return wire.ModelLabels(labels=sorted(counts, key=lambda label: (-counts[label], label)))

    async def view(self, named: str) -> wire.ModelView:
        return await self._view(await self._find(named))

    async def change(self, named: str, message: wire.ModelChange, caller: Token) -> wire.ModelView:
        def write(connection: Connection) -> RegisteredModel:
            model = _changeable(connection, named, caller)
            if message.name is not None:
                _check_free(connection, message.name, model.number)
            changed = changed_model(model, message, time.time())
            write_model(connection, changed)
            return changed

        return await self._view(await self._store.write(write))

    async def delete(self, named: str, caller: Token) -> None:
        def write(connection: Connection) -> list[CheckpointRecord]:
            model = _changeable(connection, named, caller)
            emptied = replace(model, description="", notes="", labels=(), metadata={}, is_deleted=True)
            write_model(connection, emptied)
            return _freed(connection, drop_versions(connection, model.number))

        async with self._checkpoints.registering:
            await self._let_go(await self._store.write(write))

    # --- versions

    async def register(self, named: str, new: wire.NewVersion, caller: Token) -> wire.ModelVersionView:
        model = await self._find(named)
        _check_owner(model, caller)
        async with self._checkpoints.registering:
            known = await self._reader.read(lambda it: read_version_of(it, model.number, new.checkpoint))
            if known is not None:
                return await self._version_view(known)
            checkpoint = await self._checkpoints.find_there(new.checkpoint)
            await self._mark(checkpoint, model)
            try:
                version = await self._register(model.number, new, caller)
            except Refused:  # it is going to be deleted, or the model was
                await self._unmark_unless_registered(checkpoint)
                raise
        return await self._version_view(version)

    async def _mark(self, checkpoint: CheckpointRecord, model: RegisteredModel) -> None:
        how = await asyncio.to_thread(mark, checkpoint, f"registered as a version of model {model.name}")
        if how is Marking.GONE:
            text = f"checkpoint {checkpoint.uuid} is no longer in {checkpoint.uri}; choose another"
            raise Refused(text, code="checkpoint-deleted")
        if how is Marking.OUT_OF_REACH and not await self._is_job_over(checkpoint.job):
            raise Refused(
                f"job {checkpoint.job} is not over and may still delete checkpoint {checkpoint.uuid}: the coordinator "
                f"cannot reach {checkpoint.uri} to prevent it; wait until the job is over",
                code="checkpoint-of-open-job",
            )

    async def _register(self, number: int, new: wire.NewVersion, caller: Token) -> ModelVersion:
        def write(connection: Connection) -> ModelVersion:
            model = _changeable(connection, str(number), caller)  # it may have been deleted meanwhile
            now = time.time()
            version = ModelVersion(
                model=model.number,
                number=model.last_version + 1,
                checkpoint=new.checkpoint,
                name=new.name,
                comment=new.comment,
                notes=new.notes,
                labels=distinct(new.labels),
                metadata=new.metadata,
                owner=caller.person,
                created_at=now,
                changed_at=now,
            )
            write_version(connection, version)
            write_model(connection, replace(model, last_version=version.number, changed_at=now))
            return version

        async with self._experiments.choosing:  # no sweep decides meanwhile
            await self._checkpoints.find_there(new.checkpoint)
            return await self._store.write(write)

    async def versions(self, named: str, start: int, limit: int, *, is_descending: bool) -> wire.ModelVersionList:
        model = await self._find(named)
        found = await self._reader.read(
            lambda it: read_versions(it, model.number, start, limit, is_descending=is_descending)
        )
        num_found = await self._reader.read(lambda it: count_versions(it, model.number))
        return wire.ModelVersionList(versions=await self._version_views(model, found), num_found=num_found)

    async def version(self, named: str, number: int) -> wire.ModelVersionView:
        model = await self._find(named)
        found = await self._reader.read(lambda it: read_version(it, model.number, number))
        if found is None:
            raise _no_version(model, number)
        (view,) = await self._version_views(model, [found])
        return view

    async def change_version(
        self, named: str, number: int, message: wire.VersionChange, caller: Token
    ) -> wire.ModelVersionView:
        def write(connection: Connection) -> ModelVersion:
            model = _changeable(connection, named, caller)
            version = read_version(connection, model.number, number)
            if version is None:
                raise _no_version(model, number)
            now = time.time()
            changed = changed_version(version, message, now)
            write_version(connection, changed)
            write_model(connection, replace(model, changed_at=now))
            return changed

        return await self._version_view(await self._store.write(write))

    async def delete_version(self, named: str, number: int, caller: Token) -> None:
        def write(connection: Connection) -> list[CheckpointRecord]:
            model = _changeable(connection, named, caller)
            if read_version(connection, model.number, number) is None:
                raise _no_version(model, number)
            write_model(connection, replace(model, changed_at=time.time()))
            return _freed(connection, drop_versions(connection, model.number, number))

        async with self._checkpoints.registering:
            await self._let_go(await self._store.write(write))

    async def _let_go(self, checkpoints: list[CheckpointRecord]) -> None:
        """Keep them from now on as their jobs and experiments say."""
        for each in checkpoints:
            await asyncio.to_thread(unmark, each)
        for number in {each.experiment for each in checkpoints if each.experiment} - self._experiments.live.keys():
            self._experiments.sweep(number)

    async def _unmark_unless_registered(self, checkpoint: CheckpointRecord) -> None:
        if not await self._reader.read(lambda it: read_registered(it, [checkpoint.uuid])):
            await asyncio.to_thread(unmark, checkpoint)

    # --- finding

    async def _find(self, named: str) -> RegisteredModel:
        return _there(await self._reader.read(lambda connection: read_model(connection, named)), named)

    async def _view(self, model: RegisteredModel) -> wire.ModelView:
        return _model_view(model, await self._reader.read(lambda it: count_versions(it, model.number)))

    async def _version_view(self, version: ModelVersion) -> wire.ModelVersionView:
        (view,) = await self._version_views(await self._find(str(version.model)), [version])
        return view

    async def _version_views(self, model: RegisteredModel, versions: list[ModelVersion]) -> list[wire.ModelVersionView]:
        saved = await self._checkpoints.views([each.checkpoint for each in versions])
        return [
            wire.ModelVersionView(
                model=model.number,
                model_name=model.name,
                version=each.number,
                checkpoint=saved[each.checkpoint],
                name=each.name,
                comment=each.comment,
                notes=each.notes,
                labels=list(each.labels),
                metadata=dict(each.metadata),
                owner=each.owner,
                created_at=each.created_at,
                changed_at=each.changed_at,
            )
            for each in versions
        ]


def _changeable(connection: Connection, named: str, caller: Token) -> RegisteredModel:
    model = _there(read_model(connection, named), named)
    _check_owner(model, caller)
    return model


def _check_owner(model: RegisteredModel, caller: Token) -> None:
    check_owner(f"model {model.name}", model.owner, caller, code="model-of-another")


def _check_free(connection: Connection, name: str, number: int) -> None:
    """`number`: of the model that may have the name."""
    other = read_model(connection, name)
    if other is not None and other.number != number:
        text = f"there is a model {name!r} already, with the ID {other.number}; choose another name"
        raise Refused(text, status=CONFLICT, code="model-exists")


def _there(model: RegisteredModel | None, named: str) -> RegisteredModel:
    if model is None or model.is_deleted:
        text = f"there is no model {named[:64]!r}; everstep model list shows all"
        raise Refused(text, status=UNKNOWN, code="model-unknown")
    return model


def _no_version(model: RegisteredModel, number: int) -> Refused:
    text = f"model {model.name} has no version {number}; the newest was number {model.last_version}"
    return Refused(text, status=UNKNOWN, code="model-version-unknown")


def _freed(connection: Connection, uuids: list[str]) -> list[CheckpointRecord]:
    """The checkpoints that are registered no more. Their experiments are swept, those that are over."""
    found = [each for uuid in uuids if (each := read_checkpoint(connection, uuid)) is not None]
    for number in {each.experiment for each in found if each.experiment}:
        note_unswept(connection, number)
    return found


def _mentions(model: RegisteredModel, search: str) -> bool:
    texts = (str(model.number), model.name, model.description, *model.labels)
    return any(search.casefold() in each.casefold() for each in texts)


def _model_view(model: RegisteredModel, num_versions: int) -> wire.ModelView:
    return wire.ModelView(
        model=model.number,
        name=model.name,
        description=model.description,
        notes=model.notes,
        labels=list(model.labels),
        metadata=dict(model.metadata),
        owner=model.owner,
        is_archived=model.is_archived,
        num_versions=num_versions,
        last_version=model.last_version,
        created_at=model.created_at,
        changed_at=model.changed_at,
    )
