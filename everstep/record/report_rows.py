"""What reports have besides numbers, one row a kind and step: the newest history's last word."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import Connection, delete, func, select

from everstep.record.histories import number_of
from everstep.record.tables import REPORTS
from everstep.storage.database import upsert
from everstep.wire import MetricReport, ReportsView, ReportView
from everstep.wire.limits import check_reports

MOST_BYTES = 1 << 22  # of one answer; the rest is for the next


def is_row(report: MetricReport) -> bool:
    return bool(report.details) or not report.values


def check_room(connection: Connection, job: str, reports: Sequence[MetricReport]) -> None:
    if num_new := sum(map(is_row, reports)):
        check_reports(_last_number(connection, job) + num_new)


def keep_reports(connection: Connection, job: str, attempt: int, reports: Sequence[MetricReport]) -> int:
    """Returns how many are outdated. A replaced one gets a new number, so that callers that ask for later numbers see
    it."""
    rows = [each for each in reports if is_row(each)]
    number, num_outdated = _last_number(connection, job) if rows else 0, 0
    for each in rows:
        history = number_of(attempt, each.generation)
        of_kind = (REPORTS.c.job == job, REPORTS.c.kind == each.kind)
        newer = (REPORTS.c.history > history, REPORTS.c.step <= each.step)
        if connection.scalar(select(func.count()).select_from(REPORTS).where(*of_kind, *newer)):
            num_outdated += 1
            continue
        older = (REPORTS.c.history < history, REPORTS.c.step >= each.step)
        connection.execute(delete(REPORTS).where(*of_kind, *older))
        number += 1
        row = {"job": job, "kind": each.kind, "step": each.step, "number": number, "history": history}
        upsert(connection, REPORTS, [row | {"time": each.time, "details": json.dumps(each.details)}])
    return num_outdated


def load_reports(connection: Connection, job: str, since: int, limit: int) -> ReportsView:
    """Those numbered after `since`; a negative one asks for that many of the last."""
    ours, number = REPORTS.c.job == job, REPORTS.c.number
    if since < 0:
        first = select(number).where(ours).order_by(number.desc()).offset(-since).limit(1)
        since = connection.scalar(first) or 0
    reports, last, num_bytes = list[ReportView](), since, 0
    for row in connection.execute(select(REPORTS).where(ours, number > since).order_by(number).limit(limit)):
        last, num_bytes = row.number, num_bytes + len(row.details)
        reports.append(ReportView(kind=row.kind, step=row.step, time=row.time, details=json.loads(row.details)))
        if num_bytes > MOST_BYTES:
            break
    return ReportsView(reports=reports, last=last)


def newest_of(connection: Connection, job: str, kind: str, limit: int) -> list[ReportView]:
    """The newest ones of a kind, by step."""
    this = select(REPORTS).where(REPORTS.c.job == job, REPORTS.c.kind == kind)
    found = connection.execute(this.order_by(REPORTS.c.step.desc()).limit(limit)).all()
    return [ReportView(kind=kind, step=each.step, time=each.time, details=json.loads(each.details)) for each in found]


def _last_number(connection: Connection, job: str) -> int:
    return connection.scalar(select(func.max(REPORTS.c.number)).where(REPORTS.c.job == job)) or 0
