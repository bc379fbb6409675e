"""The record that a coordinator has left behind, read from its file: answers as the coordinator would."""

from __future__ import annotations

from everstep import wire
from everstep.errors import UsageError
from everstep.record.store import MetricStore
from everstep.record.views import series_list, series_window
from everstep.wire.bounds import MAX_INT
from everstep.wire.metrics import MOST_SERIES


class FinishedRecord:
    """Of one job. `url`: of the coordinator's store, on SQLite."""

    def __init__(self, url: str, job: str) -> None:
        self._store, self._job = MetricStore(url, epoch=None), job
        if not self._store.exists():
            problem = f"{job} is over and has left no metrics"
            raise UsageError(problem, hint="it reported none, or its folder was deleted", code="record-not-found")

    def series(self, after: int = 0, limit: int = MOST_SERIES) -> wire.SeriesList:
        return series_list(*self._store.series(self._job, after, limit))

    def series_window(
        self, series: int, *, start: int = 0, stop: int = MAX_INT, columns: int = 1000, is_full: bool = False
    ) -> wire.SeriesWindow:
        if is_full:
            return series_window(series, self._store.points(self._job, series, start, stop))
        return series_window(series, self._store.window(self._job, series, start, stop, columns))

    def close(self) -> None:
        self._store.close()
