"""At every zoom, what is drawn is what all points would draw: the pyramid is compared with a full scan."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right

from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.record import pyramid
from everstep.record.pyramid import merged, span_of

NUMBERS = st.one_of(st.floats(width=32), st.sampled_from([math.nan, math.inf, -math.inf, 0.0]))
STEPS = st.one_of(
    st.integers(0, 40), st.integers(0, 5_000), st.integers(0, 80).map(lambda n: n * 1000), st.integers(0, 1 << 53)
)
POINTS = st.lists(st.tuples(STEPS, NUMBERS), min_size=1, max_size=60)
ACTS = st.lists(st.one_of(POINTS, STEPS), min_size=1, max_size=8)  # add these, or cut from there on


class Rows:
    """A series whose rows are kept as bytes, as a database has them."""

    def __init__(self):
        self.rows, self.points = {}, {}

    @property
    def last_step(self):
        return max(self.points, default=None)

    def fetch(self, key):
        return pyramid.unpack(key[0], self.rows.get(key, b""))

    def keep(self, changed):
        for key, cells in changed.items():
            if cells:
                self.rows[key] = pyramid.pack(key[0], cells)
            else:
                self.rows.pop(key, None)

    def add(self, points):
        spans = [span_of(step, float(step) + 0.5, value) for step, value in points]
        changed = pyramid.add(self.fetch, self.last_step, spans)
        self.points |= {each.first_step: each for each in spans}
        self.keep(changed)
        return changed

    def cut(self, step):
        self.points = {each: point for each, point in self.points.items() if each < step}
        changed, gone = pyramid.cut(self.fetch, step, self.last_step)
        first = dict(gone)
        self.rows = {key: data for key, data in self.rows.items() if key[1] < first[key[0]]}
        self.keep(changed)

    def window(self, start, stop, columns):
        """What is drawn, of which steps, and how many rows were read for it."""
        start, stop = max(start, min(self.points)), min(stop, self.last_step + 1)
        if start >= stop:
            return [], 0, 0, 0
        level = pyramid.choose_level(start, stop, columns)
        first, last = pyramid.row_of(level, start)[1], pyramid.row_of(level, stop - 1)[1]
        keys = [key for key in self.rows if key[0] == level and first <= key[1] <= last]
        start, whole = pyramid.whole_cells(level, start, stop)
        below = pyramid.open_rows(self.last_step, level) if self.last_step < whole else []
        found = pyramid.window(level, start, stop, map(self.fetch, keys), map(self.fetch, below), columns)
        return found, start, whole, len(keys) + len(below)


def scanned(ordered, span):
    """The span of these steps, from all points."""
    first = bisect_left(ordered, span.first_step, key=lambda point: point.first_step)
    last = bisect_right(ordered, span.last_step, key=lambda point: point.first_step)
    return merged(ordered[first:last])


def same(one, other):
    return repr(tuple(one)) == repr(tuple(other))  # NaN is the same as NaN here


def check(series, start, stop, columns):
    found, start, stop, num_rows = series.window(start, stop, columns)
    ordered = [series.points[step] for step in sorted(series.points)]
    for span in found:
        assert same(span, scanned(ordered, span))
    covered = [step for step in series.points if start <= step < stop]
    assert sum(span.num_points for span in found) == len(covered)
    assert [b.first_step for b in found] == sorted(b.first_step for b in found)
    assert len(found) <= 2 * columns
    assert num_rows < columns + pyramid.LEVELS
    widest = max((span.last_step - span.first_step for span in found), default=0)
    assert widest < max(1, (stop - start) // columns)  # no span is wider than a column


@settings(deadline=None, max_examples=150)
@given(ACTS, st.lists(st.tuples(STEPS, STEPS, st.sampled_from([1, 2, 3, 10, 100])), min_size=1, max_size=6))
def test_any_window_at_any_zoom_is_what_a_full_scan_finds(acts, windows):
    series = Rows()
    for act in acts:
        if isinstance(act, list):
            series.add(act)
        elif series.points:
            series.cut(act)
        if series.points:
            check(series, 0, 1 << 53, 10)
            for start, stop, columns in windows:
                check(series, start, stop, columns)


def test_a_long_series_is_read_with_few_rows_at_every_zoom():
    series = Rows()
    for start in range(0, 100_000, 1000):
        series.add([(step, math.sin(step)) for step in range(start, start + 1000)])
    for start, stop in ((0, 100_000), (12_345, 98_765), (50_000, 50_100), (99_990, 100_000), (3, 40_000)):
        check(series, start, stop, 1000)
    assert {level: sum(key[0] == level for key in series.rows) for level in range(5)} == {
        0: 6250, 1: 391, 2: 25, 3: 2, 4: 1,
    }  # fmt: skip


def test_a_point_at_the_end_changes_one_row_and_a_filled_row_one_more():
    series = Rows()
    changes = [len(series.add([(step, 1.0)])) for step in range(64)]
    assert sum(changes) == 64 + 3 and changes[16] == 2


def test_nan_and_infinities_are_told_apart():
    found = merged([span_of(step, 0.0, value) for step, value in enumerate([1.0, math.nan, math.inf, -math.inf])])
    assert (found.least, found.most, found.num_points) == (1.0, 1.0, 4)
    assert (found.nans, found.infs, found.negative_infs) == (1, 1, 1)
    (back,) = pyramid.unpack(1, pyramid.pack(1, {0: found})).values()
    assert same(back, found) and math.isinf(back.last)
