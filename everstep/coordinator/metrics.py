"""The metrics of all jobs at the edge: who may report, and answers to people and programs that read.

Reports go to a thread that commits, reads to another one: neither the event loop nor the roster's store waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from everstep import wire
from everstep.coordinator.roster.facts import Roster
from everstep.coordinator.vital_tasks import die
from everstep.errors import UNKNOWN, Refused
from everstep.record.commits import CommitThread
from everstep.record.store import MetricStore
from everstep.record.views import series_list, series_window
from everstep.record.writing import Incoming
from everstep.storage.database import StoreTaken
from everstep.wire.metrics import Value

T = TypeVar("T")


class Metrics:
    def __init__(self, store: MetricStore) -> None:
        self._store = store
        self._commits = CommitThread(store.keep)
        self.num_points = 0  # kept since the start
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="metrics-reader")

    async def report(self, roster: Roster, worker: str, reports: list[wire.MetricReport]) -> wire.MetricsKept:
        """Durable on return."""
        latest = roster.generation.number
        for each in reports:
            if each.generation > latest:
                raise Refused(
                    f"generation {each.generation} does not exist; the latest is {latest}",
                    code="report-generation-ahead",
                )
        return await self._keep(Incoming(roster.job, roster.worker(worker).attempt, reports))

    async def report_node(self, roster: Roster, agent: str, reports: list[wire.MetricReport]) -> wire.MetricsKept:
        """Time, not training, orders what nodes report."""
        if agent not in roster.nodes:
            raise Refused(f"there is no node {agent}", status=UNKNOWN, code="node-unknown")
        if not roster.policy.system_metrics_s:
            return wire.MetricsKept(num_points=0, reason="system metrics are off for this job (system_metrics_s=0)")
        samples = [replace(each, generation=0) for each in reports]
        return await self._keep(Incoming(roster.job, -1, samples, roster.policy.system_metrics_s))

    async def _keep(self, call: Incoming) -> wire.MetricsKept:
        try:
            kept = await asyncio.wrap_future(self._commits.submit(call))
        except StoreTaken as error:
            die("the coordinator stops", error)
            raise
        if isinstance(kept, Refused):
            raise kept
        self.num_points += kept.num_points
        return kept

    async def series(self, job: str, after: int, limit: int, *, is_own: bool = False) -> bytes:
        """As JSON, made by the reader, as a window is."""
        return await self._read(
            lambda: wire.to_json(series_list(*self._store.series(job, after, limit, is_own=is_own)))
        )

    async def window(self, job: str, series: int, start: int, stop: int, columns: int, *, is_full: bool) -> bytes:
        """As JSON, which takes as long as the reading: both are done by the reader."""

        def read() -> bytes:
            if is_full:
                found = self._store.points(job, series, start, stop)
            else:
                found = self._store.window(job, series, start, stop, columns)
            return wire.to_json(series_window(series, found))

        return await self._read(read)

    async def reports(self, job: str, since: int, limit: int) -> wire.ReportsView:
        return await self._read(lambda: self._store.reports(job, since, limit))

    async def own_series(self, job: str, limit: int) -> list[wire.SeriesView]:
        """What the job itself has reported."""
        return await self._read(lambda: series_list(*self._store.series(job, 0, limit, is_own=True)).series)

    async def reports_of(self, job: str, kind: str, limit: int) -> list[wire.ReportView]:
        """The newest of this kind."""
        return await self._read(lambda: self._store.newest_reports(job, kind, limit))

    async def names(self, jobs: Sequence[str]) -> list[str]:
        """Of all metrics that one of these jobs has reported."""
        return await self._read(lambda: self._store.names(jobs))

    async def last_values(self, jobs: Sequence[str], name: str) -> dict[str, Value]:
        """Of this metric, by job; nothing for those that have not reported it."""
        return await self._read(lambda: self._store.last_values(jobs, name))

    async def drop(self, job: str) -> int:
        """All of a job; returns how many series that were."""
        return await asyncio.to_thread(self._store.drop, job)

    async def close(self) -> None:
        await asyncio.to_thread(self._commits.close)
        self._readers.shutdown()
        self._store.close()

    async def _read(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, call)
