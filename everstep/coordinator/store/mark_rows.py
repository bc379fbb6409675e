"""Rows of marks, and the jobs of a store as rows of a list, which need no more than their own row and their marks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, func, select

from everstep.coordinator.roster import marks as kinds
from everstep.coordinator.roster.summary import PastFacts, state_of
from everstep.coordinator.store.tables import GENERATIONS, JOBS, MARKS
from everstep.wire import JobSummary, Mark

_NAMES = tuple(each.name for each in fields(Mark))


def mark_rows(job: str, marks: Iterable[Mark]) -> list[dict[str, Any]]:
    return [{"job": job, **{name: getattr(mark, name) for name in _NAMES}} for mark in marks]


def load_marks(connection: Connection, job: str, after: int, limit: int) -> list[Mark]:
    query = select(MARKS).where(MARKS.c.job == job, MARKS.c.number > after).order_by(MARKS.c.number).limit(limit)
    return [_mark(dict(row)) for row in connection.execute(query).mappings()]


def _mark(row: dict[str, Any]) -> Mark:
    del row["job"]
    return Mark(**{**row, "joined": json.loads(row["joined"]), "parted": json.loads(row["parted"])})


def load_past(connection: Connection, job: str) -> tuple[int, PastFacts]:
    """The number of the latest mark; 0 without any."""
    found = next(iter(load_summaries(connection, [job])), None)
    last = connection.scalar(select(func.max(MARKS.c.number)).where(MARKS.c.job == job)) or 0
    if found is None:
        return last, PastFacts()
    past = PastFacts(created_at=found.created_at, ended_at=found.ended_at, num_deaths=found.num_deaths, step=found.step)
    return last, past


def load_summaries(connection: Connection, jobs: Sequence[str] = ()) -> list[JobSummary]:
    """A few queries for all jobs, however many there are."""

    def of(column: Any) -> list[Any]:
        return [column.in_(jobs)] if jobs else []

    columns = (JOBS.c.job, JOBS.c.name, JOBS.c.is_stopped, JOBS.c.is_finished, JOBS.c.reason, JOBS.c.num_restarts)
    rows = connection.execute(select(*columns).where(*of(JOBS.c.job))).all()
    first = (MARKS.c.job, func.min(MARKS.c.time), func.max(MARKS.c.time), func.max(MARKS.c.step))
    timed = select(*first).where(*of(MARKS.c.job)).group_by(MARKS.c.job)
    times = {row[0]: row[1:] for row in connection.execute(timed)}
    died = select(MARKS.c.job, func.count()).where(MARKS.c.kind == kinds.DIED, *of(MARKS.c.job)).group_by(MARKS.c.job)
    deaths = {row[0]: row[1] for row in connection.execute(died)}
    each = GENERATIONS.c
    numbers = select(each.job, func.max(each.number).label("number")).where(*of(each.job))
    latest = numbers.group_by(each.job).subquery()
    newest = (latest.c.job == each.job) & (latest.c.number == each.number)
    formed = select(each.job, each.number, each.is_closed, each.members, each.reason).join(latest, newest)
    generations = {row[0]: row[1:] for row in connection.execute(formed.where(*of(each.job)))}
    found = []
    for job, name, is_stopped, is_finished, reason, num_restarts in rows:
        number, is_closed, members, why = generations.get(job, (0, False, "[]", "no generation was formed yet"))
        began_at, last_at, step = times.get(job, (0.0, None, 0))
        is_over = is_stopped or is_finished
        found.append(
            JobSummary(
                job=job,
                name=name,
                state=state_of(number, is_closed=is_closed, is_stopped=is_stopped, is_finished=is_finished),
                reason=reason if is_over else why,
                created_at=began_at,
                ended_at=last_at if is_over else None,
                num_workers=len(json.loads(members)),
                step=step,
                generation=number,
                num_deaths=deaths.get(job, 0),
                num_restarts=num_restarts,
            )
        )
    return found
