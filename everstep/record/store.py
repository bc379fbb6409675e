"""Keep series of points, and read any part of them at any zoom: SQLite or PostgreSQL, the same code.

On SQLite in a file of its own, next to the coordinator's: a file has one writer at a time, and no lease may wait for a
metric. One thread writes and another reads, each with its own connection. A transaction is kept as a whole or not at
all; after a failure, what was known in memory is read again. Opened with the first use: most starts of a coordinator
should be quick. The coordinator's epoch fences this store as well.
Blocking; knows nothing of HTTP, and decides nothing: see `pyramid` and `histories`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, Engine, and_, delete, func, insert, inspect, or_, select, true, update
from sqlalchemy.exc import SQLAlchemyError

from everstep.errors import UNKNOWN, Refused, UsageError
from everstep.record import pyramid
from everstep.record.pyramid import Cells, RowKey, Span
from everstep.record.report_rows import load_reports, newest_of
from everstep.record.tables import OWNER, REPORTS, REVISION, ROWS, SERIES, TABLES
from everstep.record.writing import Incoming, SeriesNews, Writing
from everstep.storage.database import StoreError, StoreTaken, open_engine, open_readonly, sqlite_path, words
from everstep.wire import MetricsKept, ReportsView, ReportView, to_value
from everstep.wire.metrics import SYSTEM, Value

MOST_JOBS_AT_ONCE = 500  # in one query
ROWS_PER_ANSWER = 1000  # of a full window: 16 points each at most


class Series(NamedTuple):
    series: int
    name: str
    total: Span


class Window(NamedTuple):
    name: str
    start: int
    stop: int
    span_steps: int
    num_rows: int
    spans: list[Span]


class MetricStore:
    """`keep` is called by one thread, everything else by another one. `url` and `epoch`: of the coordinator's store;
    None: only to read what an earlier coordinator has left."""

    def __init__(
        self, url: str, epoch: int | None, *, on_news: Callable[[list[SeriesNews]], None] = lambda _: None
    ) -> None:
        """`on_news` is called by the thread that keeps, with what has become durable."""
        self._url, self._epoch, self._on_news = url, epoch, on_news
        self._writer: Engine | None = None
        self._reader: Engine | None = None
        self._opening = threading.Lock()
        self._memory = threading.Lock()  # a database in memory has one connection
        self._writing = Writing()
        self._turn = threading.Lock()  # of those who write

    def keep(self, calls: Sequence[Incoming]) -> list[MetricsKept | Refused]:
        """All of them in one transaction, durable on return; a call that is refused changes nothing."""
        try:
            with self._turn, self._transaction(is_writing=True) as connection:
                answers = self._writing.keep(connection, calls)
        except BaseException:
            self._writing = Writing()
            raise
        self._on_news(self._writing.take_news())
        return answers

    def drop(self, job: str) -> int:
        """Remove all of a job, by any thread, in transactions that reports of other jobs need not wait for long.
        Returns how many series that were."""
        num_series = 0
        while True:
            with self._turn, self._transaction(is_writing=True) as connection:
                self._writing.forget(job)
                series = connection.scalar(select(SERIES.c.series).where(SERIES.c.job == job).limit(1))
                if series is None:
                    connection.execute(delete(REPORTS).where(REPORTS.c.job == job))
                    return num_series
                connection.execute(delete(ROWS).where(ROWS.c.series == series))
                connection.execute(delete(SERIES).where(SERIES.c.series == series))
            num_series += 1

    def series(self, job: str, after: int = 0, limit: int = 1000, *, is_own: bool = False) -> tuple[list[Series], int]:
        """In the order of their numbers; and how many there are in all. `is_own`: what the job itself has reported."""
        # Not by LIKE, which takes small letters for capitals in SQLite.
        is_wanted = func.substr(SERIES.c.name, 1, len(SYSTEM)) != SYSTEM if is_own else true()
        wanted = and_(SERIES.c.job == job, is_wanted)
        query = select(SERIES.c.series, SERIES.c.name, SERIES.c.total).where(wanted)
        with self._transaction() as connection:
            total = connection.scalar(select(func.count()).select_from(SERIES).where(wanted)) or 0
            found = connection.execute(query.where(SERIES.c.series > after).order_by(SERIES.c.series).limit(limit))
            return [Series(*each[:2], pyramid.unpack_span(each[2])) for each in found], total

    def names(self, jobs: Sequence[str]) -> list[str]:
        """Of all series that one of these jobs has itself reported."""
        found: set[str] = set()
        with self._transaction() as connection:
            for some in _portions(jobs):
                found |= set(connection.scalars(select(SERIES.c.name).where(SERIES.c.job.in_(some)).distinct()))
        return sorted(name for name in found if not name.startswith(SYSTEM))

    def last_values(self, jobs: Sequence[str], name: str) -> dict[str, Value]:
        """The last value of the series of this name, by job."""
        found: dict[str, Value] = {}
        with self._transaction() as connection:
            for some in _portions(jobs):
                wanted = and_(SERIES.c.job.in_(some), SERIES.c.name == name)
                for job, total in connection.execute(select(SERIES.c.job, SERIES.c.total).where(wanted)):
                    found[job] = to_value(pyramid.unpack_span(total).last)
        return found

    def window(self, job: str, series: int, start: int, stop: int, num_columns: int) -> Window:
        """The steps from `start` to before `stop`, widened to whole spans."""
        with self._transaction() as connection:
            found = _find(connection, job, series)
            start, stop = max(start, found.total.first_step), min(stop, found.total.last_step + 1)
            if start >= stop:
                return Window(found.name, start, start, 1, 0, [])
            level = pyramid.choose_level(start, stop, num_columns)
            first, last = pyramid.row_of(level, start)[1], pyramid.row_of(level, stop - 1)[1]
            rows = _rows(connection, series, and_(ROWS.c.level == level, ROWS.c.number.between(first, last)))
            start, whole_stop = pyramid.whole_cells(level, start, stop)
            open_below: dict[RowKey, Cells] = {}
            if level and found.total.last_step < whole_stop:
                keys = pyramid.open_rows(found.total.last_step, level)
                wanted = or_(*(and_(ROWS.c.level == level, ROWS.c.number == number) for level, number in keys))
                open_below = _rows(connection, series, wanted)
        spans = pyramid.window(level, start, stop, rows.values(), open_below.values(), num_columns)
        return Window(found.name, start, whole_stop, 1 << pyramid.BITS * level, len(rows) + len(open_below), spans)

    def points(self, job: str, series: int, start: int, stop: int) -> Window:
        """Every point from `start` on, as many as one answer takes; the window's stop is where to continue."""
        with self._transaction() as connection:
            found = _find(connection, job, series)
            query = (
                select(ROWS.c.number, ROWS.c.data)
                .where(ROWS.c.series == series, ROWS.c.level == 0, ROWS.c.number >= start >> pyramid.BITS)
                .order_by(ROWS.c.number)
                .limit(ROWS_PER_ANSWER)
            )
            rows = connection.execute(query).all()
        end = min(stop, found.total.last_step + 1)
        if len(rows) == ROWS_PER_ANSWER:
            end = min(end, rows[-1][0] + 1 << pyramid.BITS)
        points = [point for _, data in rows for point in pyramid.unpack(0, data).values()]
        return Window(found.name, start, end, 1, len(rows), [each for each in points if start <= each.first_step < end])

    def reports(self, job: str, since: int, limit: int) -> ReportsView:
        with self._transaction() as connection:
            return load_reports(connection, job, since, limit)

    def newest_reports(self, job: str, kind: str, limit: int) -> list[ReportView]:
        with self._transaction() as connection:
            return newest_of(connection, job, kind, limit)

    def close(self) -> None:
        for engine in (self._writer, self._reader):
            if engine is not None:
                engine.dispose()

    # --- connections ---

    def _open(self) -> tuple[Engine, Engine]:
        with self._opening:
            if self._writer is None or self._reader is None:
                path = sqlite_path(self._url)
                if path and self._epoch is None:
                    writer = reader = open_readonly(Path(f"{path}.record"))
                elif path is None:
                    writer = open_engine(self._url)
                    reader = open_engine(self._url, isolation_level="REPEATABLE READ")
                else:
                    writer = open_engine(f"{path}.record" if path else "sqlite://")
                    reader = open_engine(f"{path}.record") if path else writer
                with writer.begin() as connection:
                    if self._epoch is not None:
                        _take(connection, self._epoch)
                    else:
                        _check_revision(connection)
                self._writer, self._reader = writer, reader
            return self._writer, self._reader

    @contextmanager
    def _transaction(self, *, is_writing: bool = False) -> Iterator[Connection]:
        """Of one moment, all of it or nothing, and only while the store is ours."""
        failed = ("keep a change", "store-not-written") if is_writing else ("give an answer", "store-not-read")
        try:
            writer, reader = self._open()
            with (
                self._memory if writer is reader else nullcontext(),
                (writer if is_writing else reader).begin() as connection,
            ):
                if connection.dialect.name == "sqlite":
                    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")
                epoch = select(OWNER.c.epoch)
                found = connection.scalar(epoch.with_for_update() if is_writing else epoch)
                if self._epoch is not None and found != self._epoch:
                    raise _taken()
                yield connection
        except (SQLAlchemyError, OverflowError) as error:
            raise StoreError(f"the record of metrics did not {failed[0]}: {words(error)}", code=failed[1]) from None


def _take(connection: Connection, epoch: int) -> None:
    """The store is ours from now on, unless a later coordinator has it."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    if not inspect(connection).has_table(OWNER.name):
        TABLES.create_all(connection)
        connection.execute(insert(OWNER).values(epoch=epoch, revision=REVISION))
        return
    if _check_revision(connection) > epoch:
        raise _taken()
    connection.execute(update(OWNER).values(epoch=epoch))


def _check_revision(connection: Connection) -> int:
    """Returns the epoch of its last owner."""
    found = connection.execute(select(OWNER.c.epoch, OWNER.c.revision).with_for_update()).one()
    if found.revision != REVISION:
        raise UsageError(
            f"the record of metrics has revision {found.revision}; this version of everstep knows {REVISION}",
            hint="give another --store, or use the version of everstep that wrote this one",
            code="record-revision-unknown",
        )
    return int(found.epoch)


def _taken() -> StoreTaken:
    return StoreTaken(
        "another coordinator has taken the record of metrics",
        hint="run only one coordinator per store; if you deleted the store's file, delete FILE.record too",
        code="record-taken",
    )


def _portions(jobs: Sequence[str]) -> Iterator[Sequence[str]]:
    return (jobs[start : start + MOST_JOBS_AT_ONCE] for start in range(0, len(jobs), MOST_JOBS_AT_ONCE))


def _find(connection: Connection, job: str, series: int) -> Series:
    query = select(SERIES.c.name, SERIES.c.total).where(SERIES.c.series == series, SERIES.c.job == job)
    found = connection.execute(query).one_or_none()
    if found is None:
        raise Refused(f"job {job} has no series {series}", status=UNKNOWN, code="series-unknown")
    return Series(series, found.name, pyramid.unpack_span(found.total))


def _rows(connection: Connection, series: int, wanted: object) -> dict[RowKey, Cells]:
    """In any order: for alternatives in an order, SQLite would read all rows of the series."""
    query = select(ROWS.c.level, ROWS.c.number, ROWS.c.data).where(ROWS.c.series == series, wanted)  # type: ignore[arg-type]
    found = connection.execute(query)
    return {(level, number): pyramid.unpack(level, data) for level, number, data in found}
