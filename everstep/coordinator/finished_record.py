"""The record of a job that is over, read from its folder: answers as its coordinator would have.

Only reads: the folder may be on a disk that cannot be written. Its methods have the names and parameters of the
coordinator's operations. Blocking; for one thread at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sqlalchemy import Connection, Engine, select
from sqlalchemy.exc import SQLAlchemyError

from everstep import wire
from everstep.coordinator.experiments.views import checkpoint_view
from everstep.coordinator.regex_process import RegexProcess
from everstep.coordinator.roster.facts import Roster
from everstep.coordinator.roster.replies import generation_view, job_view
from everstep.coordinator.store.experiment_rows import read_checkpoint
from everstep.coordinator.store.log_reader import LogReader
from everstep.coordinator.store.migrate import NEWEST, revision_of
from everstep.coordinator.store.store import load_generation, load_roster
from everstep.coordinator.store.tables import JOBS
from everstep.errors import UNKNOWN, EverstepError, Refused, UsageError
from everstep.record.about import ABOUT, FILES, LOGS, METRICS, STORE, RecordAbout, parse_about
from everstep.record.log_search import check_query, log_query
from everstep.record.store import MetricStore
from everstep.record.views import series_list, series_window
from everstep.storage.database import StoreError, open_readonly, words
from everstep.wire.bounds import MAX_INT
from everstep.wire.metrics import MOST_SERIES


def open_record(folder: Path, job: str | None = None) -> FinishedRecord:
    """`job`: needed only if the folder has no record.json and its files hold several jobs."""
    if not any((folder / name).exists() for name in (ABOUT, *FILES)):
        raise _missing(f"there is no record of a job in {folder}")
    if (folder / ABOUT).exists():
        about = parse_about((folder / ABOUT).read_bytes(), str(folder / ABOUT))
    else:
        about = RecordAbout(job=job or _only_job(folder))  # killed before its end was written
    return FinishedRecord(folder, about)


class FinishedRecord:
    def __init__(self, folder: Path, about: RecordAbout) -> None:
        self.folder, self.about, self.job = folder, about, about.job
        self._engines: dict[str, Engine] = {}
        self._metrics: MetricStore | None = None
        self._regex = RegexProcess()

    def __enter__(self) -> FinishedRecord:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        self._regex.close()
        if self._metrics is not None:
            self._metrics.close()
        for engine in self._engines.values():
            engine.dispose()

    def engine(self, name: str) -> Engine:
        """Of one of its files."""
        if name not in self._engines:
            self._engines[name] = open_readonly(self._file(name))
        return self._engines[name]

    @contextmanager
    def store(self) -> Iterator[Connection]:
        """The job's rows, as this version knows them."""
        path = self.folder / STORE
        try:
            with self.engine(STORE).connect() as connection:
                _check_revision(connection, path)
                yield connection
        except SQLAlchemyError as error:
            raise _not_read(path, error) from None

    def view(self, *, is_brief: bool = False) -> wire.JobView:
        if self.about.view:
            found = wire.from_json(wire.JobView, dict(self.about.view))
            return replace(found, workers=[]) if is_brief else found
        roster = self.roster()
        return job_view(roster, {}, roster.generation.reason, is_brief=is_brief)

    def generation(self, number: int) -> wire.GenerationView:
        with self.store() as connection:
            found = load_generation(connection, self.job, number)
        if found is None:
            raise Refused(f"job {self.job} has no generation {number}", status=UNKNOWN, code="generation-unknown")
        return generation_view(found)

    def series(self, after: int = 0, limit: int = MOST_SERIES, *, is_own: bool = False) -> wire.SeriesList:
        if not self._has_metrics():
            return wire.SeriesList(series=[], num_series=0)
        return series_list(*self._metric_store().series(self.job, after, limit, is_own=is_own))

    def series_window(
        self, series: int, *, start: int = 0, stop: int = MAX_INT, columns: int = 1000, is_full: bool = False
    ) -> wire.SeriesWindow:
        store = self._metric_store()
        if is_full:
            return series_window(series, store.points(self.job, series, start, stop))
        return series_window(series, store.window(self.job, series, start, stop, columns))

    def reports(self, since: int = 0, limit: int = 100) -> wire.ReportsView:
        if not self._has_metrics():
            return wire.ReportsView(reports=[], last=since)
        return self._metric_store().reports(self.job, since, limit)

    def newest_reports(self, kind: str, limit: int) -> list[wire.ReportView]:
        """The newest first."""
        return self._metric_store().newest_reports(self.job, kind, limit) if self._has_metrics() else []

    def logs(self, request: wire.LogsRequest) -> wire.LogsView:
        """Nothing more will come, so it never waits."""
        check_query(log_query(request))
        search = self._regex.searching(request.regex) if request.regex else None
        return LogReader(self.engine(LOGS)).read(self.job, request, search=search)

    def checkpoint(self, uuid: str) -> wire.SavedCheckpoint:
        with self.store() as connection:
            found = read_checkpoint(connection, uuid)
        if found is None:
            text = f"job {self.job} has no checkpoint {uuid[:64]}"
            raise Refused(text, status=UNKNOWN, code="checkpoint-unknown")
        return checkpoint_view(found, {}, ())

    def lacks_end(self) -> str:
        """Why this may not be the last word about the job; empty: it is."""
        if self.about.state or not (self.folder / STORE).exists() or self._is_over():
            return ""
        files = [self.folder / f"{name}{suffix}" for name in FILES for suffix in ("", "-wal")]
        written_at = max(path.stat().st_mtime for path in files if path.exists())
        then = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(written_at))
        return f"as of {then}: it has no end, so its coordinator was killed, or the job is still running elsewhere"

    def _is_over(self) -> bool:
        try:
            return self.roster().is_over
        except EverstepError:  # metrics and logs can be read without it
            return False

    # --- files ---

    def _file(self, name: str) -> Path:
        path = self.folder / name
        if not path.exists():
            raise _missing(f"the record of {self.job} in {self.folder} has no {name}")
        return path

    def _has_metrics(self) -> bool:
        """A job that has reported nothing has no file for it."""
        return (self.folder / METRICS).exists()

    def _metric_store(self) -> MetricStore:
        self._file(METRICS)
        if self._metrics is None:
            self._metrics = MetricStore(str(self.folder / STORE), epoch=None)
        return self._metrics

    def roster(self) -> Roster:
        with self.store() as connection:
            roster = load_roster(connection, self.job)
        if roster is None:
            raise _missing(f"{self.folder / STORE} has no job {self.job}")
        return replace(roster, nodes={})


def _check_revision(connection: Connection, path: Path) -> None:
    if (found := revision_of(connection)) != NEWEST:
        raise UsageError(
            f"{path} has revision {found}; this version of everstep knows {NEWEST}",
            hint="use the version of everstep that wrote it",
            code="record-revision-unknown",
        )


def _only_job(folder: Path) -> str:
    path = folder / STORE
    try:
        engine = open_readonly(path)
        with engine.connect() as connection:
            jobs = list(connection.scalars(select(JOBS.c.job).limit(3)))
        engine.dispose()
    except SQLAlchemyError as error:
        raise _not_read(path, error) from None
    if len(jobs) != 1:
        raise _missing(f"{folder} has no {ABOUT}, and {path.name} holds {'several jobs' if jobs else 'no job'}")
    return str(jobs[0])


def _not_read(path: Path, error: SQLAlchemyError) -> StoreError:
    hint = "the file is damaged or not complete: copy the record again from where the job has left it"
    return StoreError(f"{path} cannot be read: {words(error)}", hint=hint, code="record-not-read")


def _missing(problem: str) -> UsageError:
    hint = f"give the folder of a run or a job, or CHECKPOINTS/record/JOB: it has a {ABOUT}"
    return UsageError(problem, hint=hint, code="record-not-found")
