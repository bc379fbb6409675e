"""The metrics that a trial, which is a job, has reported: by group and step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from everstep.client.calls import Coordinator
from everstep.errors import UNKNOWN, Refused
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.record.series_pages import all_series
from everstep.wire import SeriesView


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMetrics:
    group: str  # training, validation, …
    steps_completed: int
    metrics: dict[str, float]


def trial_metrics(link: CoordinatorLink, job: str, group: str = "") -> Iterator[StepMetrics]:
    """Step by step; `group`: only that one. None of a trial that has not had a slot."""
    with closing(link.of_job(job)) as coordinator:
        for name in _groups(coordinator, group):
            by_step = _points(coordinator, name)
            for step in sorted(by_step):
                yield StepMetrics(group=name, steps_completed=step, metrics=by_step[step])


def metric_summaries(link: CoordinatorLink, job: str) -> dict[str, dict[str, dict[str, Any]]]:
    """By group and name: the last, least and greatest finite value, and how many values there are."""
    found: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    with closing(link.of_job(job)) as coordinator:
        for each in _series(coordinator):
            group, _, name = each.name.partition("/")
            found[group][name] = {"last": each.last, "min": each.least, "max": each.most, "count": each.count}
    return dict(found)


def _series(coordinator: Coordinator) -> list[SeriesView]:
    try:
        return [each for each in all_series(coordinator, is_own=True) if "/" in each.name]
    except Refused as refused:
        if refused.status != UNKNOWN:
            raise
        return []


def _groups(coordinator: Coordinator, group: str) -> list[str]:
    names = [each.name.partition("/")[0] for each in _series(coordinator)]
    return [name for name in dict.fromkeys(names) if group in ("", name)]


def _points(coordinator: Coordinator, group: str) -> dict[int, dict[str, float]]:
    by_step: dict[int, dict[str, float]] = defaultdict(dict)
    for series in all_series(coordinator, is_own=True):
        above, _, name = series.name.partition("/")
        start = series.first_step
        while above == group and start <= series.last_step:
            window = coordinator.series_window(series.series, start=start, is_full=True)
            for step, value in zip(window.first_steps, window.firsts, strict=True):
                by_step[step][name] = float(value)
            start = window.stop
    return by_step
