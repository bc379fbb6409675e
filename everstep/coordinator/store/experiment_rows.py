"""Rows of experiments, trials, search events and checkpoints: written in the caller's transaction, read as values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from sqlalchemy import JSON, Connection, Table, cast, delete, func, select, tuple_, type_coerce, update

from everstep import wire
from everstep.coordinator.experiments.facts import DELETED, LIVE, CheckpointRecord, Experiment, Trial
from everstep.coordinator.store.tables import (
    ASSIGNMENTS,
    CHECKPOINTS,
    EXPERIMENT_SECRETS,
    EXPERIMENTS,
    JOBS,
    SEARCH_EVENTS,
    TRIALS,
)
from everstep.storage.database import upsert

_MOST_KEYS = 500  # in one query
_HAS_REUSED = TRIALS.c.reused != "{}"  # whatever its key is now: a trial on mixed machines has none


@dataclass(frozen=True, kw_only=True, slots=True)
class EventRow:
    """An event of a search, with the operations that followed."""

    experiment: int
    number: int
    time: float
    event: dict[str, Any]
    operations: list[dict[str, Any]]
    batches: int = 0
    digest: str = ""
    is_planned: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """What one transaction writes."""

    experiment: Experiment | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)  # of a new experiment
    trials: Sequence[Trial] = ()
    event: EventRow | None = None
    checkpoints: Sequence[CheckpointRecord] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptExperiment:
    """An experiment that is not over, with all that its memory is made from."""

    experiment: Experiment
    trials: list[Trial]
    events: list[EventRow]


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedExperiment:
    """What a list of experiments is chosen and sorted by."""

    number: int
    name: str
    description: str
    labels: tuple[str, ...]
    owner: str
    state: str
    summary: Mapping[str, Any]
    created_at: float
    started_at: float | None
    ended_at: float | None
    priority: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Beginning:
    """What a coordinator that starts must know."""

    live: list[int]
    unswept: list[int]
    last_experiment: int = 0
    last_trial_id: int = 0


def write_changes(connection: Connection, changes: Changes) -> None:
    if changes.experiment is not None:
        upsert(connection, EXPERIMENTS, [_experiment_row(changes.experiment)])
        if changes.secrets:
            row = {"experiment": changes.experiment.number, "held": dict(changes.secrets)}
            upsert(connection, EXPERIMENT_SECRETS, [row])
    upsert(connection, TRIALS, [_plain(each) for each in changes.trials])
    if changes.event is not None:
        upsert(connection, SEARCH_EVENTS, [_plain(changes.event)])
    upsert(connection, CHECKPOINTS, [_plain(each) for each in changes.checkpoints])


def read_beginning(connection: Connection) -> Beginning:
    columns = EXPERIMENTS.c
    live = connection.scalars(select(columns.number).where(columns.state.in_(LIVE)).order_by(columns.number))
    unswept = select(columns.number).where(columns.needs_sweep, columns.state.not_in(LIVE)).order_by(columns.number)
    return Beginning(
        live=list(live),
        unswept=list(connection.scalars(unswept)),
        last_experiment=connection.scalar(select(func.max(columns.number))) or 0,
        last_trial_id=connection.scalar(select(func.max(TRIALS.c.trial_id))) or 0,
    )


def read_live(connection: Connection, number: int) -> KeptExperiment | None:
    experiment = read_experiment(connection, number)
    if experiment is None:
        return None
    return KeptExperiment(
        experiment=experiment,
        trials=read_trials(connection, number),
        events=read_events(connection, number, 0),
    )


def read_experiment(connection: Connection, number: int) -> Experiment | None:
    rows = _rows(connection, EXPERIMENTS, EXPERIMENTS.c.number == number)
    return _experiment(rows[0]) if rows else None


def read_request(connection: Connection, request: str) -> int | None:
    """The experiment that this request created."""
    return connection.scalar(select(EXPERIMENTS.c.number).where(EXPERIMENTS.c.request == request))


def read_listed(connection: Connection, states: Sequence[str], *, is_archived: bool) -> list[ListedExperiment]:
    """Those that were not deleted, by number; `is_archived`: also archived ones. Not read: their specifications."""
    columns = EXPERIMENTS.c
    where = [columns.state != DELETED]
    if states:
        where.append(columns.state.in_(states))
    if not is_archived:
        where += [~columns.is_archived, func.coalesce(_in_spec(connection, "verifies").as_integer(), 0) == 0]
    names = [each.name for each in fields(ListedExperiment) if each.name != "priority"]
    query = select(*(columns[name] for name in names), columns.scheduling).where(*where).order_by(columns.number)
    found = []
    for *values, scheduling in connection.execute(query):
        row = dict(zip(names, values, strict=True))
        row |= {"labels": tuple(json.loads(row["labels"])), "summary": json.loads(row["summary"])}
        found.append(ListedExperiment(**row, priority=wire.Scheduling(**json.loads(scheduling)).priority))
    return found


def read_experiments(connection: Connection, numbers: Sequence[int]) -> list[Experiment]:
    return [_experiment(row) for row in _rows(connection, EXPERIMENTS, EXPERIMENTS.c.number.in_(numbers))]


def read_hyperparameters(connection: Connection, numbers: Sequence[int]) -> dict[int, dict[str, Any]]:
    """What their files say about hyperparameters."""
    columns, found = EXPERIMENTS.c, dict[int, dict[str, Any]]()
    for start in range(0, len(numbers), _MOST_KEYS):
        query = select(columns.number, _in_spec(connection, "hyperparameters"))
        for number, given in connection.execute(query.where(columns.number.in_(numbers[start : start + _MOST_KEYS]))):
            found[number] = given or {}
    return found


def _in_spec(connection: Connection, name: str) -> Any:
    """A field of the specification: such as the ID of a trial that is trained again."""
    spec = EXPERIMENTS.c.spec
    as_json = type_coerce(spec, JSON) if connection.dialect.name == "sqlite" else cast(spec, JSON)
    return as_json[name]


def read_trial(connection: Connection, experiment: int, number: int) -> Trial | None:
    rows = _rows(connection, TRIALS, (TRIALS.c.experiment == experiment) & (TRIALS.c.number == number))
    return Trial(**rows[0]) if rows else None


def read_trials(connection: Connection, experiment: int) -> list[Trial]:
    return [Trial(**row) for row in _rows(connection, TRIALS, TRIALS.c.experiment == experiment)]


def read_trial_jobs(connection: Connection, experiment: int) -> list[str]:
    """Those that there are."""
    numbers = connection.scalars(select(TRIALS.c.number).where(TRIALS.c.experiment == experiment)).all()
    names = [wire.trial_job(experiment, number) for number in numbers]
    some = (names[start : start + _MOST_KEYS] for start in range(0, len(names), _MOST_KEYS))
    return [job for each in some for job in connection.scalars(select(JOBS.c.job).where(JOBS.c.job.in_(each)))]


def read_trial_key(connection: Connection, trial_id: int) -> tuple[int, int] | None:
    """Experiment and number."""
    columns = TRIALS.c
    row = connection.execute(select(columns.experiment, columns.number).where(columns.trial_id == trial_id)).first()
    return None if row is None else (row[0], row[1])


def read_reusable(connection: Connection, keys: Sequence[str]) -> list[Trial]:
    """The trials with one of these keys, of experiments that were not deleted."""
    found: list[Trial] = []
    for start in range(0, len(keys), _MOST_KEYS):
        some = TRIALS.c.reuse_key.in_(keys[start : start + _MOST_KEYS])
        there = select(EXPERIMENTS.c.number).where(EXPERIMENTS.c.state != DELETED)
        found += [Trial(**row) for row in _rows(connection, TRIALS, some & TRIALS.c.experiment.in_(there))]
    return found


def read_lent(connection: Connection, experiment: int) -> list[CheckpointRecord]:
    """What the trials of an experiment have from others, as theirs."""
    trials = _rows(connection, TRIALS, (TRIALS.c.experiment == experiment) & _HAS_REUSED)
    found = [(row["number"], read_checkpoint(connection, uuid)) for row in trials for uuid in _uuids(row)]
    return [replace(each, experiment=experiment, trial=number) for number, each in found if each is not None]


def _uuids(row: dict[str, Any]) -> list[str]:
    return list(row["reused"].get("checkpoints", ()))


def read_borrowed(connection: Connection) -> set[str]:
    """The UUIDs of checkpoints that trials have from others."""
    there = select(EXPERIMENTS.c.number).where(EXPERIMENTS.c.state != DELETED)
    rows = _rows(connection, TRIALS, _HAS_REUSED & TRIALS.c.experiment.in_(there))
    return {uuid for row in rows for uuid in _uuids(row)}


def read_events(connection: Connection, experiment: int, after: int, limit: int | None = None) -> list[EventRow]:
    columns = SEARCH_EVENTS.c
    rows = _rows(connection, SEARCH_EVENTS, (columns.experiment == experiment) & (columns.number > after), limit)
    return [EventRow(**row) for row in rows]


def read_result_events(
    connection: Connection, experiment: int, after: int
) -> list[tuple[int, float, dict[str, Any] | None]]:
    """Number, time and event of each validation; then the last event of any kind, as None."""
    columns = SEARCH_EVENTS.c
    query = (
        select(columns.number, columns.time, columns.event)
        .where(columns.experiment == experiment, columns.number > after)
        .order_by(columns.number)
    )
    rows = connection.execute(query).all()
    found = [(number, time, json.loads(event)) for number, time, event in rows if '"validated"' in event]
    told = [each for each in found if each[2]["kind"] == "validated"]
    return [*told, (rows[-1][0], rows[-1][1], None)] if rows else []


def read_use(connection: Connection, experiment: int) -> list[tuple[float, float | None]]:
    """When each of its assignments began and ended."""
    columns = ASSIGNMENTS.c
    query = select(columns.began_at, columns.ended_at).where(columns.experiment == experiment)
    return [(began_at, ended_at) for began_at, ended_at in connection.execute(query)]


def read_trials_of(connection: Connection, keys: Sequence[tuple[int, int]]) -> list[Trial]:
    """By experiment and number."""
    found: list[Trial] = []
    for start in range(0, len(keys), _MOST_KEYS):
        some = tuple_(TRIALS.c.experiment, TRIALS.c.number).in_(keys[start : start + _MOST_KEYS])
        found += [Trial(**row) for row in _rows(connection, TRIALS, some)]
    return found


def read_checkpoint(connection: Connection, uuid: str) -> CheckpointRecord | None:
    rows = _rows(connection, CHECKPOINTS, CHECKPOINTS.c.uuid == uuid)
    return CheckpointRecord(**rows[0]) if rows else None


def read_these_checkpoints(connection: Connection, uuids: Sequence[str]) -> list[CheckpointRecord]:
    found: list[CheckpointRecord] = []
    for start in range(0, len(uuids), _MOST_KEYS):
        some = CHECKPOINTS.c.uuid.in_(uuids[start : start + _MOST_KEYS])
        found += [CheckpointRecord(**row) for row in _rows(connection, CHECKPOINTS, some)]
    return found


def read_checkpoints(connection: Connection, experiment: int, trial: int | None = None) -> list[CheckpointRecord]:
    columns = CHECKPOINTS.c
    is_wanted = columns.experiment == experiment
    rows = _rows(connection, CHECKPOINTS, is_wanted if trial is None else is_wanted & (columns.trial == trial))
    return sorted((CheckpointRecord(**row) for row in rows), key=lambda each: (each.trial, each.generation, each.step))


def read_latest_checkpoint(connection: Connection, job: str) -> CheckpointRecord | None:
    """That the job has reported last, of those that were not deleted."""
    columns = CHECKPOINTS.c
    is_there = (columns.job == job) & (columns.state != DELETED)
    newest = select(columns.uuid).where(is_there).order_by(columns.created_at.desc(), columns.step.desc()).limit(1)
    uuid = connection.scalar(newest)
    return None if uuid is None else read_checkpoint(connection, uuid)


def mark_deleted(connection: Connection, uuids: Iterable[str]) -> None:
    for uuid in uuids:
        connection.execute(update(CHECKPOINTS).where(CHECKPOINTS.c.uuid == uuid).values(state=DELETED))


def note_unswept(connection: Connection, number: int) -> None:
    """An experiment that is over has checkpoints to delete. One that is not is swept at its end."""
    columns = EXPERIMENTS.c
    is_it = (columns.number == number) & columns.state.not_in(LIVE)
    connection.execute(update(EXPERIMENTS).where(is_it).values(needs_sweep=True))


def forget_events(connection: Connection, experiment: int) -> None:
    """Of one that is deleted. Its trials stay: their numbers are not used again."""
    connection.execute(delete(SEARCH_EVENTS).where(SEARCH_EVENTS.c.experiment == experiment))


def read_secrets(connection: Connection, experiment: int) -> dict[str, str]:
    """The values, by the names of their variables."""
    held = connection.scalar(select(EXPERIMENT_SECRETS.c.held).where(EXPERIMENT_SECRETS.c.experiment == experiment))
    return {} if held is None else dict(json.loads(held))


def forget_secrets(connection: Connection, experiment: int) -> None:
    connection.execute(delete(EXPERIMENT_SECRETS).where(EXPERIMENT_SECRETS.c.experiment == experiment))


# --- rows ---


def _plain(value: Trial | EventRow | CheckpointRecord) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def _experiment_row(experiment: Experiment) -> dict[str, Any]:
    row = {name: getattr(experiment, name) for name in experiment.__dataclass_fields__}
    lists = {"labels": list(experiment.labels), "warm_start": dict(experiment.warm_start)}
    values = {name: asdict(getattr(experiment, name)) for name in ("spec", "kept", "scheduling")}
    return {**row, **lists, **values}


def _experiment(row: dict[str, Any]) -> Experiment:
    values = {
        "labels": tuple(row["labels"]),
        "spec": wire.from_json(wire.ExperimentSpec, row["spec"]),
        "kept": wire.CheckpointsKept(**row["kept"]),
        "scheduling": wire.Scheduling(**row["scheduling"]),
    }
    return Experiment(**{**row, **values})


def _rows(connection: Connection, table: Table, where: Any, limit: int | None = None) -> list[dict[str, Any]]:
    """In the order of their keys."""
    query = select(table).where(where).order_by(*table.primary_key).limit(limit)
    names = [(each.name, "is_json" in each.info) for each in table.columns]
    return [
        {name: json.loads(value) if is_json else value for (name, is_json), value in zip(names, row, strict=True)}
        for row in connection.execute(query)
    ]
