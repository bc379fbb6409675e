"""Series on both stores: any window at any zoom is what a full scan of all points finds, also after steps are trained
again and after the store was opened anew."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everstep.record.histories import number_of
from everstep.record.pyramid import merged, span_of
from everstep.record.store import MetricStore
from everstep.record.writing import Incoming
from everstep.storage.database import StoreTaken
from everstep.wire import MetricReport
from everstep.wire.bounds import MAX_INT

STEPS = st.one_of(st.integers(0, 300), st.integers(0, 1 << 40))
BATCHES = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.tuples(STEPS, st.floats(width=32)), min_size=1, max_size=60)), max_size=5
)
epochs = itertools.count(1)


def told(generation, points):
    reports = [
        MetricReport(step=step, time=1.0, generation=generation, values={"x": str(value)}) for step, value in points
    ]
    return Incoming("job", 0, reports)


@settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
@given(BATCHES, STEPS, st.sampled_from([1, 10, 1000]))
def test_any_window_is_what_all_points_would_draw(store_url, batches, start, columns):
    store, job = MetricStore(store_url, next(epochs)), f"job{next(epochs)}"
    points, began = {}, {}  # by step; and by generation, its first step
    for number, (generation, batch) in enumerate(batches):
        call = told(generation, batch)._replace(job=job)
        store.keep([call])
        for step, value in batch:
            newer = [first for other, first in began.items() if other > generation]
            if any(first <= step for first in newer):
                continue
            if generation not in began and not newer:
                points = {each: point for each, point in points.items() if each < step}
                began = {other: first for other, first in began.items() if first < step}
                began[generation] = step
            points[step] = span_of(step, 1.0, value)
        if number == 2:
            store.close()
            store = MetricStore(store_url, next(epochs))
    found = store.series(job)[0]
    assert len(found) == bool(points)
    if points:
        ordered = [points[step] for step in sorted(points)]
        (series,) = found
        assert repr(series.total) == repr(merged(ordered))
        assert repr(store.points(job, series.series, 0, MAX_INT).spans) == repr(ordered)
        for stop in (start + 100, MAX_INT):
            window = store.window(job, series.series, start, stop, columns)
            inside = [each for each in ordered if window.start <= each.first_step < window.stop]
            assert sum(each.num_points for each in window.spans) == len(inside)
            assert window.num_rows <= 2000 and len(window.spans) <= 2 * columns
            for each in window.spans:
                own = [point for point in inside if each.first_step <= point.first_step <= each.last_step]
                assert repr(each) == repr(merged(own))
    store.close()


def test_a_later_coordinator_has_the_record_and_an_earlier_one_is_turned_away(store_url):
    earlier = MetricStore(store_url, next(epochs))
    earlier.keep([told(0, [(1, 1.0)])])
    later = MetricStore(store_url, next(epochs))
    later.keep([told(0, [(2, 1.0)])])
    with pytest.raises(StoreTaken):
        earlier.keep([told(0, [(3, 1.0)])])
    with pytest.raises(StoreTaken):
        earlier.series("job")
    assert later.series("job")[0][0].total.last_step == 2
    earlier.close()
    later.close()


def test_an_attempt_counts_more_than_any_generation_before_it():
    assert number_of(1, 0) > number_of(0, 10**6) > number_of(0, 7) > number_of(-1, 9)
