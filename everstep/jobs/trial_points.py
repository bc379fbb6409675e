"""All points that a trial has reported, page by page: however many there are, few are in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TypeVar

from everstep.client.calls import Coordinator
from everstep.errors import UNKNOWN, Refused
from everstep.jobs.coordinator_link import PATIENCE_S, CoordinatorLink
from everstep.record.series_pages import all_series
from everstep.retry import patiently
from everstep.wire import SeriesView, SeriesWindow

T = TypeVar("T")


def trial_pages(link: CoordinatorLink, job: str) -> Iterator[SeriesWindow]:
    """The pages of one series after the other. None of a trial that has not had a slot."""
    with closing(link.of_job(job)) as coordinator:
        for series in known_series(coordinator):
            yield from series_pages(coordinator, series)


def known_series(coordinator: Coordinator) -> list[SeriesView]:
    """Without system metrics."""
    try:
        return _again(lambda: list(all_series(coordinator, is_own=True)))
    except Refused as refused:
        if refused.status != UNKNOWN:
            raise
        return []


def series_pages(coordinator: Coordinator, series: SeriesView, start: int = 0) -> Iterator[SeriesWindow]:
    """Each entry of a page is a point: its step, time and value are in `first_steps`, `first_times` and `firsts`."""
    start = max(start, series.first_step)
    while start <= series.last_step:
        page = _page(coordinator, series.series, start)
        yield page
        start = page.stop


def _page(coordinator: Coordinator, series: int, start: int) -> SeriesWindow:
    return _again(lambda: coordinator.series_window(series, start=start, is_full=True))


def _again(call: Callable[[], T]) -> T:
    """A coordinator that restarts does not end a long export."""
    return patiently(call, PATIENCE_S)
