"""All series of a job, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from everstep.wire import SeriesList, SeriesView


class SeriesPages(Protocol):
    """A coordinator, or the record that one has left."""

    def series(self, after: int = 0, *, is_own: bool = False) -> SeriesList: ...


def all_series(source: SeriesPages, *, is_own: bool = False) -> Iterator[SeriesView]:
    """`is_own`: what the job itself has reported."""
    after = 0
    while found := source.series(after=after, is_own=is_own).series:
        yield from found
        after = found[-1].series
