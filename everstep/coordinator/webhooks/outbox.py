"""Send what waits in the outbox: at least once, a few at a time, and nothing else waits for it.

A delivery is in the store before it is sent, and marked there afterwards. A coordinator that is killed between the two
sends it again, with the same ID."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import replace

from everstep.coordinator.store.store import Store
from everstep.coordinator.store.store_reader import StoreReader
from everstep.coordinator.store.webhook_rows import drop_ended, read_due, read_waiting, save_attempt
from everstep.coordinator.vital_tasks import die_if_failed
from everstep.coordinator.webhooks.attempts import PostAnswer, decide_attempt
from everstep.coordinator.webhooks.bodies import body_of, headers_of
from everstep.coordinator.webhooks.book import WebhookBook
from everstep.coordinator.webhooks.facts import Delivery, Webhook
from everstep.coordinator.webhooks.hosts import parse_url
from everstep.coordinator.webhooks.post import Poster
from everstep.storage.database import StoreError
from everstep.wire.webhooks import GIVEN_UP

log = logging.getLogger(__name__)

MOST_AT_ONCE, MOST_PER_WEBHOOK = 8, 2
LONGEST_LOOK_S = 60.0  # between two looks into the outbox, unless it has news
AGAIN_S = 1.0  # after a failure of the store
KEPT_S = 30 * 86_400.0  # deliveries are listed this long after their end
SWEEP_S = 3600.0


class Outbox:
    def __init__(self, store: Store, reader: StoreReader, book: WebhookBook, poster: Poster) -> None:
        self._store, self._reader, self._book, self._poster = store, reader, book, poster
        self._has_news = asyncio.Event()
        self._busy: dict[str, int] = {}  # deliveries under way, and their webhooks
        self._sending: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._swept_at = time.time() - SWEEP_S + LONGEST_LOOK_S  # soon, but not at each start

    def open(self) -> None:
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(die_if_failed)

    def ring(self) -> None:
        """There may be something new."""
        self._has_news.set()

    async def close(self) -> None:
        tasks = [*self._sending, *([self._task] if self._task is not None else [])]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._poster.close()

    async def send(self, webhook: Webhook, delivery: Delivery) -> PostAnswer:
        """One attempt."""
        held = self._book.secret(webhook)
        body = body_of(webhook.kind, delivery.event)
        headers = headers_of(delivery.uuid, body, held.secret, time.time())
        return await self._poster.post(parse_url(held.url), body, headers)

    async def _run(self) -> None:
        while True:
            self._has_news.clear()
            try:
                wait_s = await self._look()
                await self._sweep()
            except StoreError as error:
                log.error("webhooks: %s", error)
                wait_s = AGAIN_S
            timer = asyncio.get_running_loop().call_later(wait_s, self._has_news.set)
            try:
                await self._has_news.wait()
            finally:
                timer.cancel()

    async def _look(self) -> float:
        """Send what is due, as far as there is room. Returns in how many seconds something will be."""
        if not self._book.webhooks:
            return LONGEST_LOOK_S
        now = time.time()
        waiting = await self._reader.read(lambda connection: read_waiting(connection, list(self._busy)))
        next_at = now + LONGEST_LOOK_S
        for webhook in sorted(waiting, key=lambda each: waiting[each]):
            room = min(MOST_AT_ONCE - len(self._busy), MOST_PER_WEBHOOK - self._num_busy(webhook))
            if room <= 0:
                continue  # the end of one of them is news
            next_at = min(next_at, waiting[webhook])
            if waiting[webhook] <= now:
                await self._begin(webhook, now, room)
        return max(0.0, next_at - time.time())

    async def _begin(self, webhook: int, now: float, room: int) -> None:
        due = await self._reader.read(lambda connection: read_due(connection, webhook, now, list(self._busy), room))
        for each in due:
            self._busy[each.uuid] = webhook
            task = asyncio.create_task(self._deliver(each))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
            task.add_done_callback(die_if_failed)

    def _num_busy(self, webhook: int) -> int:
        return sum(each == webhook for each in self._busy.values())

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            tried = await self._attempt(delivery)
            await self._store.write(lambda connection: save_attempt(connection, tried))
        except StoreError as error:  # it will be sent again
            log.error("webhooks: %s", error)
            await asyncio.sleep(AGAIN_S)
        finally:
            del self._busy[delivery.uuid]
            self._has_news.set()

    async def _attempt(self, delivery: Delivery) -> Delivery:
        webhook = self._book.find(delivery.webhook)
        if webhook is None:
            return replace(delivery, state=GIVEN_UP, reason="the webhook was deleted", ended_at=time.time())
        tried = decide_attempt(delivery, await self.send(webhook, delivery), time.time(), random.random())
        if tried.state == GIVEN_UP:
            log.warning("webhook %d (%s): %s: %s", webhook.number, webhook.name, tried.uuid, tried.reason)
        return tried

    async def _sweep(self) -> None:
        now = time.time()
        if now - self._swept_at >= SWEEP_S:
            self._swept_at = now
            await self._store.write(lambda connection: drop_ended(connection, now - KEPT_S))
