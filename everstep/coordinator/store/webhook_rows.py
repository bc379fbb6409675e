"""Rows of webhooks and their deliveries: written in the caller's transaction, read as values."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Table, delete, func, select, update

from everstep.coordinator.store.tables import DELIVERIES, LOG_SCANS, WEBHOOK_SECRETS, WEBHOOKS
from everstep.coordinator.webhooks.facts import Delivery, Webhook, WebhookSecret
from everstep.storage.database import upsert
from everstep.wire.webhooks import GIVEN_UP, WAITING_TO_BE_SENT

_D = DELIVERIES.c
_MOST_KEYS = 500  # in one query


@dataclass(frozen=True, kw_only=True, slots=True)
class LogScan:
    """How far the log of a job was searched for these patterns: up to the part with this number."""

    job: str
    number: int
    patterns: str  # a digest


def read_webhooks(connection: Connection) -> list[Webhook]:
    rows = [_values(WEBHOOKS, row) for row in connection.execute(select(WEBHOOKS).order_by(WEBHOOKS.c.number))]
    lists = ("triggers", "log_patterns")
    return [Webhook(**{**row, **{name: tuple(row[name]) for name in lists}}) for row in rows]


def read_webhook_secrets(connection: Connection) -> dict[int, WebhookSecret]:
    rows = connection.execute(select(WEBHOOK_SECRETS))
    return {row.webhook: WebhookSecret(url=row.url, secret=row.secret) for row in rows}


def write_webhook(connection: Connection, webhook: Webhook, secret: WebhookSecret) -> None:
    """Nothing that was meant for a deleted webhook of the same number must go to this one."""
    connection.execute(delete(DELIVERIES).where(_D.webhook == webhook.number))
    upsert(connection, WEBHOOKS, [{name: getattr(webhook, name) for name in webhook.__dataclass_fields__}])
    upsert(
        connection, WEBHOOK_SECRETS, [{"webhook": webhook.number, "url": secret.url, "secret": secret.secret}]
    )  # fmt: skip


def forget_webhook(connection: Connection, number: int) -> None:
    for table, column in ((WEBHOOKS, WEBHOOKS.c.number), (WEBHOOK_SECRETS, WEBHOOK_SECRETS.c.webhook)):
        connection.execute(delete(table).where(column == number))
    connection.execute(delete(DELIVERIES).where(_D.webhook == number))


def add_deliveries(connection: Connection, deliveries: Iterable[Delivery]) -> None:
    """Those that are not there yet: an event that is added twice is delivered once."""
    new = {each.uuid: each for each in deliveries}
    names = list(new)
    for start in range(0, len(names), _MOST_KEYS):
        some = _D.uuid.in_(names[start : start + _MOST_KEYS])
        for known in connection.scalars(select(_D.uuid).where(some)).all():
            del new[known]
    upsert(connection, DELIVERIES, [_row(each) for each in new.values()])


def save_attempt(connection: Connection, tried: Delivery) -> None:
    """The webhook may have been deleted meanwhile."""
    names = ("state", "num_attempts", "status", "reason", "next_at", "ended_at")
    values = {name: getattr(tried, name) for name in names}
    connection.execute(update(DELIVERIES).where(_D.uuid == tried.uuid).values(values))


def read_waiting(connection: Connection, busy: Collection[str]) -> dict[int, float]:
    """When the next delivery of each webhook is due, without those that are under way."""
    query = select(_D.webhook, func.min(_D.next_at)).where(_D.state == WAITING_TO_BE_SENT, _D.uuid.not_in(busy))
    rows = connection.execute(query.group_by(_D.webhook)).all()
    return {row[0]: row[1] for row in rows}


def read_due(connection: Connection, webhook: int, now: float, busy: Collection[str], limit: int) -> list[Delivery]:
    where = (_D.webhook == webhook, _D.state == WAITING_TO_BE_SENT, _D.next_at <= now, _D.uuid.not_in(busy))
    query = select(DELIVERIES).where(*where).order_by(_D.next_at, _D.created_at, _D.uuid).limit(limit)
    return [_delivery(row) for row in connection.execute(query)]


def read_deliveries(connection: Connection, webhook: int, start: int, limit: int) -> tuple[list[Delivery], int]:
    """Newest first, and how many there are."""
    ours = _D.webhook == webhook
    query = select(DELIVERIES).where(ours).order_by(_D.created_at.desc(), _D.uuid).offset(start).limit(limit)
    found = [_delivery(row) for row in connection.execute(query)]
    return found, connection.scalar(select(func.count()).select_from(DELIVERIES).where(ours)) or 0


def count_deliveries(connection: Connection) -> dict[tuple[int, str], int]:
    """Those that wait or were given up, by webhook and state."""
    states = (WAITING_TO_BE_SENT, GIVEN_UP)
    query = select(_D.webhook, _D.state, func.count()).where(_D.state.in_(states)).group_by(_D.webhook, _D.state)
    return {(webhook, state): number for webhook, state, number in connection.execute(query)}


def count_waiting(connection: Connection, webhooks: Collection[int]) -> int:
    """The most that wait for one of these webhooks."""
    where = (_D.webhook.in_(webhooks), _D.state == WAITING_TO_BE_SENT)
    counts = connection.execute(
        select(func.count()).select_from(DELIVERIES).where(*where).group_by(_D.webhook)
    ).scalars()
    return max(counts, default=0)


def drop_ended(connection: Connection, before: float) -> None:
    connection.execute(delete(DELIVERIES).where(_D.ended_at < before))


# --- searches of logs ---


def read_log_scan(connection: Connection, job: str) -> LogScan | None:
    row = connection.execute(select(LOG_SCANS).where(LOG_SCANS.c.job == job)).first()
    return None if row is None else LogScan(**_values(LOG_SCANS, row))


def write_log_scan(connection: Connection, scan: LogScan) -> None:
    upsert(connection, LOG_SCANS, [{"job": scan.job, "number": scan.number, "patterns": scan.patterns}])


def forget_log_scan(connection: Connection, job: str) -> None:
    connection.execute(delete(LOG_SCANS).where(LOG_SCANS.c.job == job))


# --- rows ---


def _row(delivery: Delivery) -> dict[str, Any]:
    return {name: getattr(delivery, name) for name in delivery.__dataclass_fields__}


def _delivery(row: Any) -> Delivery:
    return Delivery(**_values(DELIVERIES, row))


def _values(table: Table, row: Any) -> dict[str, Any]:
    """By column."""
    return {
        each.name: json.loads(getattr(row, each.name)) if "is_json" in each.info else getattr(row, each.name)
        for each in table.columns
    }
