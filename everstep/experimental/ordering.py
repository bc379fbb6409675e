"""In which order lists of experiments, trials and checkpoints come. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from everstep import wire
from everstep.experimental.enums import CheckpointSortBy, ExperimentSortBy, OrderBy, TrialSortBy
from everstep.jobs.experiments import best_checkpoints
from everstep.wire.experiments import COMPLETED

T = TypeVar("T")


def ordered(
    views: Iterable[T], sort_by: ExperimentSortBy | TrialSortBy | CheckpointSortBy, order_by: OrderBy
) -> list[T]:
    """Those without the value come last, in either direction."""
    keyed = [(_value(each, sort_by.value), each) for each in views]
    known = sorted((pair for pair in keyed if pair[0] is not None), key=lambda pair: pair[0])
    if order_by.is_descending:
        known.reverse()
    return [each for _, each in known] + [each for value, each in keyed if value is None]


def ordered_checkpoints(
    found: Sequence[wire.SavedCheckpoint],
    view: wire.ExperimentView,
    sort_by: str | CheckpointSortBy | None,
    order_by: OrderBy | None,
    *,
    smaller_is_better: bool | None = None,
) -> list[wire.SavedCheckpoint]:
    """Those that still exist. By a metric: best first, or as `order_by` says."""
    if isinstance(sort_by, CheckpointSortBy):
        there = [each for each in found if each.state == COMPLETED]
        return ordered(there, sort_by, order_by or OrderBy.ASCENDING)
    if order_by is not None:
        smaller_is_better = not order_by.is_descending
    return best_checkpoints(found, view, metric=sort_by, smaller_is_better=smaller_is_better)


def _value(view: Any, name: str) -> Any:
    if name == "duration":
        is_over = view.started_at is not None and view.ended_at is not None
        return view.ended_at - view.started_at if is_over else None
    value = getattr(view, name)
    if name == "num_trials":
        return sum(value.values())
    if isinstance(value, wire.BestResult):
        return value.metric
    if name in ("metric", "best", "latest") and value is not None:
        number = float(value)
        return None if number != number else number
    return value
