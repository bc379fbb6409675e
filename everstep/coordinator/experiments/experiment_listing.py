"""The list of experiments: chosen, sorted and read in parts, with metrics and hyperparameters of the best trials.

Of all experiments only what they are chosen and sorted by is read; only those of the page are read whole."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from everstep import wire
from everstep.coordinator.experiments.experiments import Experiments
from everstep.coordinator.experiments.facts import Experiment
from everstep.coordinator.experiments.trial_columns import searched_names, value_at
from everstep.coordinator.experiments.views import experiment_view
from everstep.coordinator.metrics import Metrics
from everstep.coordinator.store.experiment_rows import (
    ListedExperiment,
    read_experiments,
    read_hyperparameters,
    read_listed,
    read_trials_of,
)
from everstep.errors import Refused
from everstep.wire.experiment_views import HYPERPARAMETER_COLUMN, METRIC_COLUMN
from everstep.wire.page_bounds import MOST_COLUMNS_SHOWN

_MOST_LOOKED_AT = 1000  # of the newest experiments, for the names of columns

_SORTS: Mapping[str, Callable[[ListedExperiment, Mapping[str, Any]], Any]] = {
    "experiment": lambda each, _: each.number,
    "name": lambda each, _: each.name.casefold(),
    "state": lambda each, _: each.state,
    "owner": lambda each, _: each.owner,
    "priority": lambda each, _: each.priority,
    "created_at": lambda each, _: each.created_at,
    "started_at": lambda each, _: each.started_at,
    "ended_at": lambda each, _: each.ended_at,
    "progress": lambda _, summary: summary.get("progress", 0.0),
    "num_trials": lambda _, summary: sum(summary.get("num_trials", {}).values()),
    "best": lambda _, summary: (summary.get("best") or {}).get("metric"),
}


class ExperimentListing:
    def __init__(self, experiments: Experiments, metrics: Metrics) -> None:
        self._experiments, self._metrics, self._reader = experiments, metrics, experiments.reader
        self._searched: dict[int, list[str]] = {}  # hyperparameters, by experiment: they never change

    async def find(
        self,
        start: int,
        limit: int,
        *,
        search: str = "",
        states: Sequence[str] = (),
        is_archived: bool = False,
        labels: Sequence[str] = (),
        owner: str = "",
        sort: str = "experiment",
        is_descending: bool = True,
        columns: Sequence[str] = (),
    ) -> wire.ExperimentList:
        _check_columns(columns)
        listed = await self._reader.read(lambda connection: read_listed(connection, states, is_archived=is_archived))
        chosen = [each for each in listed if is_chosen(each, search.casefold(), labels, owner)]
        values = await self._sort_values(chosen, sort)
        numbers = in_order(values, is_descending=is_descending)
        page = numbers[start : start + limit]
        views = await self._views(page)
        known = {each.number: each for each in chosen}
        shown = [known[each] for each in page]
        found = {name: await self._column(shown, name) for name in columns}
        return wire.ExperimentList(
            experiments=views,
            num_found=len(numbers),
            values={name: [each.get(number) for number in page] for name, each in found.items()},
        )

    async def columns(self) -> wire.ExperimentColumns:
        listed = await self._reader.read(lambda connection: read_listed(connection, (), is_archived=True))
        newest = listed[-_MOST_LOOKED_AT:]
        await self._read_searched([each.number for each in newest if each.number not in self._searched])
        jobs = [wire.trial_job(each.number, trial) for each in newest if (trial := self._subject(each))]
        return wire.ExperimentColumns(
            metrics=await self._metrics.names(jobs),
            hyperparameters=sorted({name for each in newest for name in self._searched.get(each.number, ())}),
            labels=sorted({label for each in listed for label in each.labels}),
            owners=sorted({each.owner for each in listed if each.owner}),
        )

    async def _read_searched(self, numbers: Sequence[int]) -> None:
        found = await self._reader.read(lambda connection: read_hyperparameters(connection, numbers))
        self._searched |= await asyncio.to_thread(
            lambda: {number: searched_names(given) for number, given in found.items()}
        )

    async def _views(self, numbers: Sequence[int]) -> list[wire.ExperimentView]:
        rows = await self._reader.read(lambda connection: read_experiments(connection, numbers))
        found = {each.number: each for each in rows}
        return [self._view(found[number]) for number in numbers if number in found]

    def _view(self, facts: Experiment) -> wire.ExperimentView:
        live = self._experiments.live.get(facts.number)
        trials = live.trials if live else {}
        return experiment_view(live.facts if live else facts, live, trials, self._experiments.holder)

    async def _sort_values(self, chosen: Sequence[ListedExperiment], sort: str) -> dict[int, Any]:
        if sort in _SORTS:
            return {each.number: _SORTS[sort](each, self._summary(each)) for each in chosen}
        _check_columns([sort], sorts=_SORTS)
        found = await self._column(chosen, sort)
        return {each.number: found.get(each.number) for each in chosen}

    def _summary(self, listed: ListedExperiment) -> Mapping[str, Any]:
        live = self._experiments.live.get(listed.number)
        return listed.summary if live is None else live.summary()

    def _subject(self, listed: ListedExperiment) -> int:
        """The trial that an experiment's columns show: the best, or the only one; 0: none."""
        summary = self._summary(listed)
        if best := summary.get("best"):
            return int(best["trial"])
        return 1 if sum(summary.get("num_trials", {}).values()) == 1 else 0

    async def _column(self, listed: Sequence[ListedExperiment], name: str) -> dict[int, Any]:
        subjects = {each.number: trial for each in listed if (trial := self._subject(each))}
        if name.startswith(HYPERPARAMETER_COLUMN):
            keys = list(subjects.items())
            trials = await self._reader.read(lambda connection: read_trials_of(connection, keys))
            wanted = name.removeprefix(HYPERPARAMETER_COLUMN)
            return {each.experiment: value_at(each.hparams, wanted) for each in trials}
        jobs = {wire.trial_job(number, trial): number for number, trial in subjects.items()}
        found = await self._metrics.last_values([*jobs], name.removeprefix(METRIC_COLUMN))
        return {jobs[job]: value for job, value in found.items()}


def is_chosen(listed: ListedExperiment, text: str, labels: Sequence[str], owner: str) -> bool:
    """`text`: with small letters. `labels`: it must have all of them."""
    if (owner and listed.owner != owner) or any(each not in listed.labels for each in labels):
        return False
    told = (str(listed.number), listed.name, listed.description, *listed.labels)
    return not text or any(text in each.casefold() for each in told)


def in_order(values: Mapping[int, Any], *, is_descending: bool) -> list[int]:
    """Experiments by a value; those without one come last, and the newest first among equals. Numbers come before
    texts."""
    ranked = sorted(values, reverse=True)
    ranked.sort(key=lambda number: _key(values[number]), reverse=is_descending)
    return sorted(ranked, key=partial(_has_none, values))


def _has_none(values: Mapping[int, Any], number: int) -> bool:
    value = values[number]
    return value is None or (isinstance(value, float) and math.isnan(value))


def _key(value: Any) -> tuple[int, float, str]:
    if isinstance(value, bool) or value is None:
        return (1, 0.0, str(value))
    if isinstance(value, int | float):
        return (0, 0.0 if math.isnan(value) else value, "")
    if value in ("nan", "inf", "-inf"):
        return (0, float(value) if value != "nan" else math.inf, "")
    return (1, 0.0, str(value))


def _check_columns(names: Sequence[str], sorts: Iterable[str] = ()) -> None:
    if len(names) > MOST_COLUMNS_SHOWN:
        text = f"{len(names)} columns are more than {MOST_COLUMNS_SHOWN}"
        raise Refused(text, status=422, code="parameter-invalid")
    for name in names:
        if not name.startswith((METRIC_COLUMN, HYPERPARAMETER_COLUMN)):
            known = ", ".join([*sorts, f"{METRIC_COLUMN}NAME", f"{HYPERPARAMETER_COLUMN}NAME"])
            raise Refused(f"there is no column {name[:100]!r}: use {known}", status=422, code="parameter-invalid")
