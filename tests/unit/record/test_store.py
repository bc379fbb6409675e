"""The record's store by itself: what a window costs, and which series are a job's own."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import event

from everstep.record.store import MetricStore
from everstep.record.writing import Incoming
from everstep.wire import MetricReport

NUM_POINTS, AT_ONCE = 60_000, 10_000
OPERATIONS = 100  # of SQLite, between two calls of the handler


@pytest.fixture
def store(tmp_path: Path):
    with closing(MetricStore(str(tmp_path / "store.db"), epoch=1)) as store:
        for start in range(0, NUM_POINTS, AT_ONCE):
            steps = range(start, start + AT_ONCE)
            reports = [MetricReport(step=step, time=1.0, values={"x": float(step % 97)}) for step in steps]
            store.keep([Incoming("job", -1, reports)])
        yield store


def test_a_window_costs_what_its_rows_cost_however_long_the_series_is(store: MetricStore) -> None:
    ((one,), _) = store.series("job")
    _, reader = store._open()
    num_called = 0

    def count() -> int:
        nonlocal num_called
        num_called += 1
        return 0

    @event.listens_for(reader, "begin")
    def watch(connection) -> None:
        connection.connection.driver_connection.set_progress_handler(count, OPERATIONS)

    window = store.window("job", one.series, 0, NUM_POINTS, 100)
    assert sum(span.num_points for span in window.spans) == NUM_POINTS
    assert window.num_rows < 50
    assert num_called * OPERATIONS < 20 * window.num_rows + 2_000


def test_a_series_with_capitals_is_the_jobs_own(tmp_path: Path) -> None:
    values = {"system/cpu": 1.0, "System/cpu": 1.0, "SYSTEM/x": 1.0, "system": 1.0}
    with closing(MetricStore(str(tmp_path / "store.db"), epoch=1)) as store:
        store.keep([Incoming("job", -1, [MetricReport(step=1, time=1.0, values=values)])])
        found, num_series = store.series("job", is_own=True)
    assert sorted(each.name for each in found) == ["SYSTEM/x", "System/cpu", "system"] and num_series == 3
