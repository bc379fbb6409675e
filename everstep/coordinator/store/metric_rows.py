"""Reports of metrics as rows of the store and back. Blocking; part of a transaction that `store` opens and closes.

Of one kind and batch there is one row: the last word. It gets a new number when it is replaced, so that callers that
ask for later numbers see it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import Connection, RowMapping, func, select

from everstep.coordinator.store.tables import METRICS
from everstep.coordinator.store.upsert import upsert
from everstep.wire import MetricReport, MetricsView
from everstep.wire.limits import check_reports

MOST_BYTES = 1 << 22  # of one answer; the rest is for the next


def save_reports(connection: Connection, job: str, reports: Sequence[MetricReport]) -> None:
    last = _last(connection, job)
    check_reports(last + len(reports))
    newest = {(each.kind, each.batches): each for each in reports}  # a statement must not meet a row twice
    rows = [
        asdict(each)
        | {"job": job, "number": number, "metrics": json.dumps(each.metrics), "facts": json.dumps(each.facts)}
        for number, each in enumerate(newest.values(), start=last + 1)
    ]
    upsert(connection, METRICS, rows)


def load_reports(connection: Connection, job: str, since: int, limit: int) -> MetricsView:
    """Those numbered after `since`; a negative one asks for that many of the last."""
    ours, number = METRICS.c.job == job, METRICS.c.number
    if since < 0:
        since = connection.scalar(select(number).where(ours).order_by(number.desc()).offset(-since).limit(1)) or 0
    query = select(METRICS).where(ours, number > since).order_by(number).limit(limit)
    reports, last, num_bytes = list[MetricReport](), since, 0
    for row in connection.execute(query).mappings():
        reports.append(_report(row))
        last, num_bytes = row["number"], num_bytes + len(row["metrics"]) + len(row["facts"])
        if num_bytes > MOST_BYTES:
            break
    return MetricsView(reports=reports, last=last)


def _last(connection: Connection, job: str) -> int:
    found = connection.scalar(select(func.max(METRICS.c.number)).where(METRICS.c.job == job))
    return int(found or 0)


def _report(row: RowMapping) -> MetricReport:
    return MetricReport(
        metrics=json.loads(row["metrics"]),
        facts=json.loads(row["facts"]),
        **{name: row[name] for name in ("kind", "batches", "time", "epochs", "records")},
    )
