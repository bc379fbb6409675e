"""All jobs as a list that can be sorted, searched and read in parts, and what is known about one of them.

Rows of jobs that are not in memory are read from the store once; a job is in memory from its first call on, and makes
its own row. So a page of the list costs no query, however many people look."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from operator import attrgetter

from everstep import wire
from everstep.coordinator.job import CoordinatedJob
from everstep.coordinator.metrics import Metrics
from everstep.coordinator.store.store_reader import StoreReader
from everstep.errors import Refused
from everstep.wire.metrics import MOST_SERIES, SYSTEM

MOST_CHECKPOINTS = 100
CHECKPOINT = "checkpoint"  # a kind of report
_MOST_KEPT = 16  # sorted lists

_SORTED_BY = {each.name for each in fields(wire.JobSummary)}


class JobListing:
    def __init__(self, reader: StoreReader, jobs: Mapping[str, CoordinatedJob], metrics: Metrics) -> None:
        """`jobs`: those in memory, which change."""
        self._reader, self._jobs, self._metrics = reader, jobs, metrics
        self._others: dict[str, wire.JobSummary] | None = None  # as they were kept; None: not read yet
        self._meanwhile: dict[str, wire.JobSummary | None] = {}  # what changed while they were read; None: removed
        self._reading = asyncio.Lock()
        self._rows: list[wire.JobSummary] = []
        self._found: dict[tuple[object, ...], list[wire.JobSummary]] = {}  # what was asked → those rows, sorted

    async def find(
        self, start: int, limit: int, sort: str, *, is_descending: bool, search: str, states: Sequence[str]
    ) -> wire.JobList:
        if sort not in _SORTED_BY:
            text = f"cannot sort by {sort!r}: a job has {', '.join(sorted(_SORTED_BY))}"
            raise Refused(text, status=422, code="parameter-invalid")
        rows = await self._all()
        if rows != self._rows:  # quick: a row that has not changed is the same object
            self._rows = rows
            self._found.clear()
        asked = (sort, is_descending, search, *states)
        if (found := self._found.get(asked)) is None:
            found = _sorted([each for each in rows if _matches(each, search.casefold(), states)], sort, is_descending)
            if len(self._found) >= _MOST_KEPT:
                self._found.clear()
            self._found[asked] = found
        return wire.JobList(jobs=found[start : start + limit], num_found=len(found), num_jobs=len(rows))

    def keep(self, summary: wire.JobSummary) -> None:
        """Of a job that leaves the memory and stays in the store."""
        self._note(summary.job, summary)

    def forget(self, job: str) -> None:
        """It has left the store."""
        self._note(job, None)

    def _note(self, job: str, summary: wire.JobSummary | None) -> None:
        if self._others is None:
            if self._reading.locked():
                self._meanwhile[job] = summary
        elif summary is None:
            self._others.pop(job, None)
        else:
            self._others[job] = summary

    async def about(self, job: CoordinatedJob) -> wire.JobAbout:
        roster = job.kept
        reports = await self._metrics.reports_of(roster.job, CHECKPOINT, MOST_CHECKPOINTS)
        checkpoints = checkpoint_views(reports)
        return wire.JobAbout(
            summary=job.summary(), policy=asdict(roster.policy), config=dict(roster.config), checkpoints=checkpoints
        )

    async def compared(self, job: CoordinatedJob) -> wire.ComparedJob:
        found = await self._metrics.own_series(job.kept.job, MOST_SERIES)
        values, roster = compared_values(found), job.kept
        return wire.ComparedJob(
            summary=job.summary(), policy=asdict(roster.policy), config=dict(roster.config), values=values
        )

    async def band(self, job: str, after: int, limit: int) -> wire.Band:
        marks = await self._reader.marks(job, after, limit)
        return wire.Band(marks=marks, last=marks[-1].number if marks else after)

    async def _all(self) -> list[wire.JobSummary]:
        async with self._reading:
            if self._others is None:
                found = {each.job: each for each in await self._reader.summaries()} | self._meanwhile
                self._others = {job: each for job, each in found.items() if each is not None}
                self._meanwhile.clear()
        others = [each for name, each in self._others.items() if name not in self._jobs]
        return [*others, *(job.summary() for job in self._jobs.values())]


def checkpoint_views(reports: Iterable[wire.ReportView]) -> list[wire.CheckpointView]:
    return [
        wire.CheckpointView(
            uuid=str(each.details.get("uuid", "")), step=each.step, time=each.time, details=each.details
        )
        for each in reports
    ]


def compared_values(series: Iterable[wire.SeriesView]) -> list[wire.ComparedValue]:
    return [
        wire.ComparedValue(
            name=each.name,
            last=each.last,
            last_step=each.last_step,
            least=each.least,
            most=each.most,
            count=each.count,
        )
        for each in series
        if not each.name.startswith(SYSTEM)  # nodes and workers compare nothing
    ]


def _sorted(rows: list[wire.JobSummary], sort: str, is_descending: bool) -> list[wire.JobSummary]:
    """By name where they are equal: no row may be on two pages, or on none."""
    key = _by_end if sort == "ended_at" else attrgetter(sort, "job")
    return sorted(rows, key=key, reverse=is_descending)


def _matches(summary: wire.JobSummary, text: str, states: Sequence[str]) -> bool:
    if states and summary.state not in states:
        return False
    return not text or any(text in each.casefold() for each in (summary.job, summary.name, summary.reason))


def _by_end(summary: wire.JobSummary) -> tuple[float, str]:
    """A job that is not over ends later than all others."""
    return math.inf if summary.ended_at is None else summary.ended_at, summary.job
