"""Write reports as rows of series: finds the series, lets `histories` decide what counts, and `pyramid` what changes.

Keeps in memory what the next report of a series needs: the series themselves, and their open rows. Forgotten after a
failure, and for jobs that have not reported for long."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, delete, func, or_, select

from everstep.errors import Refused
from everstep.record import histories, pyramid
from everstep.record.pyramid import Cells, RowKey, Span
from everstep.record.report_rows import check_room, keep_reports
from everstep.record.tables import ROWS, SERIES
from everstep.storage.database import upsert
from everstep.wire import MetricReport, MetricsKept
from everstep.wire.limits import check_metrics, sample_interval_s
from everstep.wire.metrics import SYSTEM

OUTDATED = "a newer attempt or generation has trained these steps again"
MOST_SERIES_AT_HAND = 50_000  # 2 KiB each and more


Owner = tuple[str, bool]  # a job, and whether it is about its nodes and workers: these do not count as its own


class Incoming(NamedTuple):
    """A call with reports. Attempt -1: no history fences them. `sample_s`: to an agent, how often the job wants
    samples."""

    job: str
    attempt: int
    reports: Sequence[MetricReport]
    sample_s: float = 0.0

    @property
    def num_points(self) -> int:
        return sum(len(each.values) for each in self.reports)


class SeriesNews(NamedTuple):
    """What a transaction has changed in one series, for those who follow it."""

    job: str
    series: int
    name: str
    num_points: int  # of the series now
    cut: int | None  # points from this step on were removed first: they were trained again
    points: Sequence[tuple[int, float, float]]  # step, time, value


@dataclass(slots=True)
class OpenSeries:
    series: int
    job: str
    name: str
    histories: histories.Histories = field(default_factory=list)
    total: Span | None = None
    open_rows: dict[RowKey, Cells] | None = field(default_factory=dict)  # all of them; None: not read yet

    @property
    def owner(self) -> Owner:
        return self.job, self.name.startswith(SYSTEM)

    @property
    def last_step(self) -> int | None:
        return self.total.last_step if self.total else None


class Writing:
    """Series between transactions, and the rows that the current transaction has changed so far."""

    def __init__(self) -> None:
        self._jobs: dict[str, dict[str, OpenSeries]] = {}  # by name; the job that reported last at the end
        self._num_points: Counter[Owner] = Counter()
        self._num_series: Counter[Owner] = Counter()
        self._next_series = 0
        self._changed: dict[tuple[int, int, int], Cells] = {}
        self._touched: dict[int, OpenSeries] = {}
        self._news: list[SeriesNews] = []

    def take_news(self) -> list[SeriesNews]:
        """What the last transaction changed, once it is durable."""
        news, self._news = self._news, []
        return news

    def keep(self, connection: Connection, calls: Sequence[Incoming]) -> list[MetricsKept | Refused]:
        self._connection = connection
        self._forget_some({call.job for call in calls})
        answers = [self._keep_one(call) for call in calls]
        self._flush()
        return answers

    def forget(self, job: str) -> None:
        """It is about to be removed."""
        self._jobs.pop(job, None)
        self._forget_counts(job)

    def _keep_one(self, call: Incoming) -> MetricsKept | Refused:
        known = self._known(call.job)
        names = {f"{report.kind}/{name}" if report.kind else name for report in call.reports for name in report.values}
        try:
            self._check(call, names, known)
            check_room(self._connection, call.job, call.reports)
        except Refused as refusal:
            return refusal
        num_details_outdated = keep_reports(self._connection, call.job, call.attempt, call.reports)
        points: dict[str, list[tuple[int, Span]]] = {}
        for report in call.reports:
            history = histories.number_of(call.attempt, report.generation)
            for name, value in report.values.items():
                point = pyramid.span_of(report.step, report.time, float(value))
                points.setdefault(f"{report.kind}/{name}" if report.kind else name, []).append((history, point))
        num_outdated = sum(
            self._add(known.get(name) or self._begin(call.job, name), reported) for name, reported in points.items()
        )
        kept = MetricsKept(num_points=call.num_points - num_outdated, num_outdated=num_outdated + num_details_outdated)
        if call.sample_s:
            kept = replace(kept, next_s=sample_interval_s(call.sample_s, self._num_points[call.job, True]))
        return replace(kept, reason=OUTDATED) if kept.num_outdated else kept

    def _check(self, call: Incoming, names: set[str], known: dict[str, OpenSeries]) -> None:
        system = {name for name in names if name.startswith(SYSTEM)}
        for is_system, some in ((False, names - system), (True, system)):
            if some:
                owner = (call.job, is_system)
                num_series = self._num_series[owner] + len(some - known.keys())
                check_metrics(num_series, self._num_points[owner] + call.num_points, is_system=is_system)

    # --- one series ---

    def _add(self, series: OpenSeries, reported: Sequence[tuple[int, Span]]) -> int:
        """Returns how many are outdated."""
        new: dict[int, Span] = {}
        kept: dict[int, Span] = {}
        num_outdated, cut = 0, None
        for history, point in reported:
            if not histories.counts(series.histories, history, point.first_step):
                num_outdated += 1
                continue
            if histories.begins(series.histories, history):
                self._put(series, new)
                new = {}
                if series.total is not None and series.total.last_step >= point.first_step:
                    cut = point.first_step if cut is None else min(cut, point.first_step)
                    kept = {step: each for step, each in kept.items() if step < point.first_step}
                self._cut(series, point.first_step)
                series.histories = histories.begun(series.histories, history, point.first_step)
            new[point.first_step] = kept[point.first_step] = point
        self._put(series, new)
        if kept:
            points = [(each.first_step, each.first_time, each.first) for each in kept.values()]
            count = series.total.num_points if series.total else 0
            self._news.append(SeriesNews(series.job, series.series, series.name, count, cut, points))
        return num_outdated

    def _put(self, series: OpenSeries, new: dict[int, Span]) -> None:
        if not new:
            return
        points = [new[step] for step in sorted(new)]
        before, had = series.last_step, series.total.num_points if series.total else 0
        if series.open_rows is None:
            self._read_open_rows(series)
        changed = pyramid.add(lambda key: self._fetch(series, key), before, points)
        self._changed |= {(series.series, *key): cells for key, cells in changed.items()}
        last = max(points[-1].last_step, before if before is not None else -1)
        if len(changed) > 1 or before is None:  # otherwise only the open row of level 0 changed
            at_hand = (series.open_rows or {}) | changed
            series.open_rows = {key: at_hand[key] for key in pyramid.open_rows(last, pyramid.LEVELS) if key in at_hand}
        if before is None or points[0].first_step > before:
            series.total = pyramid.merged([*([series.total] if series.total else []), *points])
        else:
            series.total = self._sum_up(series, last)
        self._num_points[series.owner] += series.total.num_points - had
        self._touched[series.series] = series

    def _cut(self, series: OpenSeries, step: int) -> None:
        """Remove what an older history has reported from this step on."""
        if series.total is None or series.total.last_step < step:
            return
        self._flush()
        if series.open_rows is None:
            self._read_open_rows(series)
        ours = (ROWS.c.series == series.series, ROWS.c.level == 0, ROWS.c.number <= step >> pyramid.BITS)
        before = select(ROWS.c.data).where(*ours).order_by(ROWS.c.number.desc()).limit(2)
        steps = [each for data in self._connection.scalars(before) for each in pyramid.unpack(0, data) if each < step]
        last_kept, had = max(steps, default=None), series.total.num_points
        changed, first_gone = pyramid.cut(lambda key: self._fetch(series, key), step, last_kept)
        gone = or_(*(and_(ROWS.c.level == level, ROWS.c.number >= number) for level, number in first_gone))
        self._connection.execute(delete(ROWS).where(ROWS.c.series == series.series, gone))
        self._changed |= {(series.series, *key): cells for key, cells in changed.items()}
        series.open_rows = {key: cells for key, cells in changed.items() if cells}
        series.total = None if last_kept is None else self._sum_up(series, last_kept)
        self._num_points[series.owner] -= had - (series.total.num_points if series.total else 0)
        self._touched[series.series] = series

    def _sum_up(self, series: OpenSeries, last_step: int) -> Span:
        """All points: the one row of the highest level, and the open rows below it."""
        top = pyramid.num_levels(last_step) - 1
        keys = [(top, 0), *pyramid.open_rows(last_step, top)]
        cells = [cell for key in keys for cell in self._fetch(series, key, last_step).values()]
        return pyramid.merged(sorted(cells))

    def _fetch(self, series: OpenSeries, key: RowKey, last_step: int | None = None) -> Cells:
        last_step = series.last_step if last_step is None else last_step
        changed = self._changed.get((series.series, *key))
        if changed is not None:
            return changed
        level, number = key
        newest = -1 if last_step is None else pyramid.row_of(level, last_step)[1]
        if number > newest:
            return {}
        if number == newest and series.open_rows is not None:
            return series.open_rows.get(key, {})
        this = (ROWS.c.series == series.series, ROWS.c.level == level, ROWS.c.number == number)
        data = self._connection.scalar(select(ROWS.c.data).where(*this))
        return {} if data is None else pyramid.unpack(level, data)

    def _read_open_rows(self, series: OpenSeries) -> None:
        assert series.total is not None
        keys = pyramid.open_rows(series.total.last_step, pyramid.num_levels(series.total.last_step))
        wanted = or_(*(and_(ROWS.c.level == level, ROWS.c.number == number) for level, number in keys))
        query = select(ROWS.c.level, ROWS.c.number, ROWS.c.data).where(ROWS.c.series == series.series, wanted)
        found = self._connection.execute(query)
        series.open_rows = {(level, number): pyramid.unpack(level, data) for level, number, data in found}

    # --- series and their rows ---

    def _known(self, job: str) -> dict[str, OpenSeries]:
        if (known := self._jobs.pop(job, None)) is None:
            known = {}
            for row in self._connection.execute(select(SERIES).where(SERIES.c.job == job)):
                total, held = (
                    pyramid.unpack_span(row.total),
                    [(number, since) for number, since in json.loads(row.histories)],
                )
                known[row.name] = OpenSeries(row.series, job, row.name, held, total, None)
            self._forget_counts(job)
            for each in known.values():
                self._num_points[each.owner] += each.total.num_points if each.total else 0
                self._num_series[each.owner] += 1
        self._jobs[job] = known
        return known

    def _begin(self, job: str, name: str) -> OpenSeries:
        if not self._next_series:
            self._next_series = (self._connection.scalar(select(func.max(SERIES.c.series))) or 0) + 1
        series = self._jobs[job][name] = OpenSeries(self._next_series, job, name)
        self._next_series += 1
        self._num_series[series.owner] += 1
        return series

    def _forget_some(self, needed: set[str]) -> None:
        """Of jobs that have not reported for long."""
        num_series = sum(map(len, self._jobs.values()))
        for job in [job for job in self._jobs if job not in needed]:
            if num_series <= MOST_SERIES_AT_HAND:
                return
            num_series -= len(self._jobs.pop(job))
            self._forget_counts(job)

    def _forget_counts(self, job: str) -> None:
        for counts in (self._num_points, self._num_series):
            for is_system in (False, True):
                del counts[job, is_system]

    def _flush(self) -> None:
        rows: list[dict[str, Any]] = []
        for (series, level, number), cells in self._changed.items():
            if cells:
                rows.append({"series": series, "level": level, "number": number, "data": pyramid.pack(level, cells)})
            else:
                this = (ROWS.c.series == series, ROWS.c.level == level, ROWS.c.number == number)
                self._connection.execute(delete(ROWS).where(*this))
        upsert(self._connection, ROWS, rows)
        kept = [_series_row(each) for each in self._touched.values() if each.total]
        upsert(self._connection, SERIES, kept)
        self._changed, self._touched = {}, {}


def _series_row(series: OpenSeries) -> dict[str, Any]:
    assert series.total is not None
    return {
        "series": series.series,
        "job": series.job,
        "name": series.name,
        "histories": json.dumps(series.histories),
        "total": pyramid.pack_span(series.total),
    }
