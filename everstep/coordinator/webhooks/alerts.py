"""Alerts of scripts: put into the outbox before they are answered."""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import Connection

from everstep import wire
from everstep.coordinator.experiments.facts import Experiment, Trial
from everstep.coordinator.store.store import Store
from everstep.coordinator.store.webhook_rows import add_deliveries, count_waiting
from everstep.coordinator.webhooks.book import WebhookBook
from everstep.coordinator.webhooks.triggers import alert_deliveries
from everstep.errors import Refused

MOST_WAITING = 10_000  # deliveries to a webhook; above this, alerts are refused
_TOO_MANY = 429


class Alerts:
    def __init__(self, store: Store, book: WebhookBook, on_deliveries: Callable[[], None]) -> None:
        self._store, self._book, self._on_deliveries = store, book, on_deliveries

    async def tell(self, facts: Experiment, trial: Trial, alert: wire.Alert) -> int:
        """To how many webhooks it goes."""
        made = alert_deliveries(self._book.webhooks, facts, trial, alert, time.time())
        if not made:
            return 0

        def write(connection: Connection) -> int:
            num_waiting = count_waiting(connection, [each.webhook for each in made])
            if num_waiting < MOST_WAITING:
                add_deliveries(connection, made)
            return num_waiting

        try:
            num_waiting = await self._store.write(write)
        finally:
            self._on_deliveries()
        if num_waiting >= MOST_WAITING:
            text = f"{num_waiting} deliveries wait for a webhook that should get this alert"
            raise Refused(text, status=_TOO_MANY, wait_s=60.0, code="too-many-alerts")
        return len(made)
