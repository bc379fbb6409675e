"""Rows of models and their versions, and what people write on checkpoints: written in the caller's transaction, read
as values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, delete, func, select

from everstep import wire
from everstep.coordinator.models.facts import ModelVersion, RegisteredModel
from everstep.coordinator.store.tables import CHECKPOINT_NOTES, CHECKPOINTS, MODEL_VERSIONS, MODELS
from everstep.storage.database import upsert
from everstep.wire.bounds import MAX_INT

_MOST_KEYS = 500  # in one query


def read_model(connection: Connection, named: str) -> RegisteredModel | None:
    """By its ID or its name."""
    columns, is_id = MODELS.c, named.isdecimal()
    if is_id and int(named) > MAX_INT:  # a database has no room for it
        return None
    is_it = columns.number == int(named) if is_id else columns.name == named
    found = _models(connection, is_it & ~columns.is_deleted)
    return found[0] if found else None


def read_model_request(connection: Connection, request: str) -> RegisteredModel | None:
    """The model that this request created, even if it was deleted."""
    found = _models(connection, MODELS.c.request == request)
    return found[0] if found else None


def read_all_models(connection: Connection) -> list[tuple[RegisteredModel, int]]:
    """With the number of their versions."""
    counted = select(MODEL_VERSIONS.c.model, func.count()).group_by(MODEL_VERSIONS.c.model)
    num_versions = {row[0]: row[1] for row in connection.execute(counted)}
    return [(each, num_versions.get(each.number, 0)) for each in _models(connection, ~MODELS.c.is_deleted)]


def count_versions(connection: Connection, model: int) -> int:
    counted = select(func.count()).select_from(MODEL_VERSIONS).where(MODEL_VERSIONS.c.model == model)
    return connection.scalar(counted) or 0


def next_model_number(connection: Connection) -> int:
    return (connection.scalar(select(func.max(MODELS.c.number))) or 0) + 1


def write_model(connection: Connection, model: RegisteredModel) -> None:
    upsert(connection, MODELS, [_plain(model)])


def read_versions(
    connection: Connection, model: int, start: int, limit: int, *, is_descending: bool
) -> list[ModelVersion]:
    columns = MODEL_VERSIONS.c
    order = columns.number.desc() if is_descending else columns.number
    query = select(MODEL_VERSIONS).where(columns.model == model).order_by(order).offset(start).limit(limit)
    return [_version(row) for row in _decoded(connection, MODEL_VERSIONS, query)]


def read_version(connection: Connection, model: int, number: int) -> ModelVersion | None:
    columns = MODEL_VERSIONS.c
    query = select(MODEL_VERSIONS).where(columns.model == model, columns.number == number)
    found = _decoded(connection, MODEL_VERSIONS, query)
    return _version(found[0]) if found else None


def read_version_of(connection: Connection, model: int, checkpoint: str) -> ModelVersion | None:
    """The version of the model that this checkpoint is."""
    columns = MODEL_VERSIONS.c
    query = select(MODEL_VERSIONS).where(columns.model == model, columns.checkpoint == checkpoint)
    found = _decoded(connection, MODEL_VERSIONS, query)
    return _version(found[0]) if found else None


def write_version(connection: Connection, version: ModelVersion) -> None:
    upsert(connection, MODEL_VERSIONS, [_plain(version)])


def drop_versions(connection: Connection, model: int, number: int | None = None) -> list[str]:
    """All versions of a model, or this one. The UUIDs of checkpoints that then are no longer a version of any model."""
    columns = MODEL_VERSIONS.c
    is_it = columns.model == model if number is None else (columns.model == model) & (columns.number == number)
    uuids = list(connection.scalars(select(columns.checkpoint).where(is_it)))
    connection.execute(delete(MODEL_VERSIONS).where(is_it))
    still = read_registered(connection, uuids)
    return [each for each in uuids if each not in still]


# --- checkpoints ----------------------------------------------------------------------------------


def read_registered(connection: Connection, uuids: Sequence[str]) -> dict[str, list[wire.RegisteredAs]]:
    """What models' versions these checkpoints are, for those that are some."""
    columns, found = MODEL_VERSIONS.c, dict[str, list[wire.RegisteredAs]]()
    asked = select(columns.checkpoint, columns.model, MODELS.c.name, columns.number).where(
        columns.model == MODELS.c.number
    )
    for some in _pieces(uuids):
        query = asked.where(columns.checkpoint.in_(some)).order_by(columns.model, columns.number)
        for uuid, model, name, number in connection.execute(query):
            found.setdefault(uuid, []).append(wire.RegisteredAs(model=model, name=name, version=number))
    return found


def read_registered_of(connection: Connection, experiment: int) -> dict[str, list[wire.RegisteredAs]]:
    """The same, for the checkpoints of an experiment."""
    own = select(CHECKPOINTS.c.uuid).where(
        CHECKPOINTS.c.experiment == experiment, CHECKPOINTS.c.uuid.in_(select(MODEL_VERSIONS.c.checkpoint))
    )
    return read_registered(connection, list(connection.scalars(own)))


def read_metadata(connection: Connection, uuids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Of checkpoints that have some."""
    columns, found = CHECKPOINT_NOTES.c, dict[str, dict[str, Any]]()
    for some in _pieces(uuids):
        rows = connection.execute(select(columns.uuid, columns.metadata).where(columns.uuid.in_(some)))
        found |= {uuid: json.loads(text) for uuid, text in rows}
    return found


def write_metadata(connection: Connection, uuid: str, metadata: Mapping[str, Any]) -> None:
    upsert(connection, CHECKPOINT_NOTES, [{"uuid": uuid, "metadata": dict(metadata)}])


# --- rows -----------------------------------------------------------------------------------------


def _pieces(uuids: Sequence[str]) -> list[Sequence[str]]:
    return [uuids[start : start + _MOST_KEYS] for start in range(0, len(uuids), _MOST_KEYS)]


def _models(connection: Connection, where: Any) -> list[RegisteredModel]:
    rows = _decoded(connection, MODELS, select(MODELS).where(where).order_by(MODELS.c.number))
    return [RegisteredModel(**{**row, "labels": tuple(row["labels"])}) for row in rows]


def _version(row: dict[str, Any]) -> ModelVersion:
    return ModelVersion(**{**row, "labels": tuple(row["labels"])})


def _plain(value: RegisteredModel | ModelVersion) -> dict[str, Any]:
    row = {name: getattr(value, name) for name in value.__dataclass_fields__}
    return {**row, "labels": list(value.labels), "metadata": dict(value.metadata)}


def _decoded(connection: Connection, table: Table, query: Any) -> list[dict[str, Any]]:
    names = [(each.name, "is_json" in each.info) for each in table.columns]
    return [
        {name: json.loads(value) if is_json else value for (name, is_json), value in zip(names, row, strict=True)}
        for row in connection.execute(query)
    ]
