"""Reads what a trial reported after a validation: how far it is, and the metric that the search compares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from everstep.errors import UsageError
from everstep.search.config import SearchConfig
from everstep.search.events import Validated, finite

_NOT_FINITE = ("NaN", "Infinity", "-Infinity")  # as JSON carries them


def read_validation(config: SearchConfig, trial: int, metrics: Mapping[str, Any]) -> Validated:
    """`metrics`: with the trial's length among them, under the name of its unit or time metric."""
    metric = metrics.get(config.metric)
    if metric in _NOT_FINITE:
        metric = math.nan
    value = _number(trial, metrics, config.metric, metric, "metric")  # first: if both are missing, it is the one named
    length = _number(trial, metrics, config.unit, metrics.get(config.unit), "time_metric")
    return Validated(trial=trial, length=int(length), metric=finite(value))


def _number(trial: int, metrics: Mapping[str, Any], name: str, value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(
            f"trial {trial}: its validation has no number called {name!r}; it has {', '.join(metrics) or 'none'}",
            hint=f"searcher.{key} names a metric that the trial reports",
            code=f"search-{key.replace('_', '-')}-missing",
        )
    return float(value)
