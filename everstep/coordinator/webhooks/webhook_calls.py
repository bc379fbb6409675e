"""User calls about webhooks: create, list, test, delete, and their deliveries."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping

from sqlalchemy import Connection

from everstep import wire
from everstep.coordinator.experiments import owners
from everstep.coordinator.experiments.experiments import Experiments
from everstep.coordinator.store.store_reader import StoreReader
from everstep.coordinator.store.webhook_rows import count_deliveries, read_deliveries
from everstep.coordinator.webhooks.access import check_may_change, check_may_create, may_change
from everstep.coordinator.webhooks.book import WebhookBook
from everstep.coordinator.webhooks.facts import Delivery, Webhook, WebhookSecret
from everstep.coordinator.webhooks.hosts import AllowedHosts, parse_url
from everstep.coordinator.webhooks.outbox import Outbox
from everstep.coordinator.webhooks.triggers import sentence, test_event
from everstep.errors import CONFLICT, UNKNOWN, Refused, UsageError
from everstep.record.log_search import compile_regex
from everstep.wire.tokens import Token
from everstep.wire.webhooks import GIVEN_UP, WAITING_TO_BE_SENT

MOST_WEBHOOKS = 1000
MOST_TESTS = 4  # at a time
_TOO_MANY = 429


class WebhookCalls:
    def __init__(
        self,
        book: WebhookBook,
        outbox: Outbox,
        experiments: Experiments,
        reader: StoreReader,
        hosts: AllowedHosts,
        on_patterns: Callable[[], None],
    ) -> None:
        """`on_patterns`: called when logs must be searched for something new."""
        self._book, self._outbox, self._experiments, self._on_patterns = book, outbox, experiments, on_patterns
        self._reader, self._hosts = reader, hosts
        self._creating = asyncio.Lock()
        self._num_tests = 0

    async def create(self, new: wire.NewWebhook, caller: Token) -> wire.CreatedWebhook:
        async with self._creating:
            known = next((each for each in self._book.webhooks if each.request == new.request), None)
            if known is None:
                known = await self._create(new, caller)
            check_may_change(known, caller)
            return wire.CreatedWebhook(webhook=_view(known, {}), secret=self._book.secret(known).secret)

    async def _create(self, new: wire.NewWebhook, caller: Token) -> Webhook:
        address = await asyncio.to_thread(self._checked, new)
        webhook = Webhook(
            number=max((each.number for each in self._book.webhooks), default=0) + 1,
            request=new.request,
            name=new.name,
            address=address,
            kind=new.kind,
            triggers=tuple(dict.fromkeys(new.triggers)),
            log_patterns=tuple(dict.fromkeys(new.log_patterns)),
            experiment=new.experiment,
            owner=caller.person,
            is_for_everyone=new.is_for_everyone,
            is_on_request=new.is_on_request,
            created_at=time.time(),
        )
        check_may_create(webhook, caller)
        if new.experiment:
            owners.check_may_change(await self._experiments.facts(new.experiment), caller)
        if any(each.name == new.name for each in self._book.webhooks):
            text = f"there is a webhook named {new.name}; choose another name"
            raise Refused(text, status=CONFLICT, code="webhook-name-taken")
        if len(self._book.webhooks) >= MOST_WEBHOOKS:
            text = f"there are {MOST_WEBHOOKS} webhooks, and no more are allowed; delete some"
            raise Refused(text, status=CONFLICT, code="too-many-webhooks")
        await self._book.add(webhook, WebhookSecret(url=new.url, secret=secrets.token_urlsafe(32)))
        self._on_patterns()
        return webhook

    def _checked(self, new: wire.NewWebhook) -> str:
        """The address of the URL, without what may hold a token."""
        try:
            target = parse_url(new.url)
            for pattern in new.log_patterns:
                compile_regex(pattern)
        except UsageError as error:
            raise Refused(error.message, status=422, hint=error.hint, code=error.code) from None
        if reason := self._hosts.why_not(target):
            raise Refused(reason, status=422, code="webhook-host-not-allowed")
        return target.address

    async def list_all(self, caller: Token) -> wire.WebhookList:
        counts = await self._reader.read(count_deliveries)
        found = [_view(each, counts) for each in self._book.webhooks if may_change(each, caller)]
        return wire.WebhookList(webhooks=found, hosts=self._hosts.written)

    async def test(self, number: int, caller: Token) -> wire.WebhookAnswer:
        webhook = self._find(number, caller)
        if self._num_tests >= MOST_TESTS:
            text = f"{MOST_TESTS} tests of webhooks are under way"
            raise Refused(text, status=_TOO_MANY, wait_s=1.0, code="too-many-webhook-tests")
        self._num_tests += 1
        try:
            delivery, began = test_event(webhook, time.time()), time.monotonic()
            answer = await self._outbox.send(webhook, delivery)
        finally:
            self._num_tests -= 1
        return wire.WebhookAnswer(
            delivery=delivery.uuid,
            is_delivered=answer.is_good,
            status=answer.status,
            reason=answer.reason,
            took_s=time.monotonic() - began,
        )

    async def delete(self, number: int, caller: Token) -> None:
        await self._book.remove(self._find(number, caller))

    async def deliveries(self, number: int, start: int, limit: int, caller: Token) -> wire.DeliveryList:
        webhook = self._find(number, caller)

        def read(connection: Connection) -> tuple[list[Delivery], int]:
            return read_deliveries(connection, webhook.number, start, limit)

        found, num_found = await self._reader.read(read)
        return wire.DeliveryList(deliveries=[_delivery_view(each) for each in found], num_found=num_found)

    def _find(self, number: int, caller: Token) -> Webhook:
        webhook = self._book.find(number)
        if webhook is None:
            raise Refused(f"there is no webhook {number}", status=UNKNOWN, code="webhook-unknown")
        check_may_change(webhook, caller)
        return webhook


def _view(webhook: Webhook, counts: Mapping[tuple[int, str], int]) -> wire.WebhookView:
    return wire.WebhookView(
        webhook=webhook.number,
        name=webhook.name,
        address=webhook.address,
        kind=webhook.kind,
        triggers=list(webhook.triggers),
        log_patterns=list(webhook.log_patterns),
        experiment=webhook.experiment,
        owner=webhook.owner,
        is_for_everyone=webhook.is_for_everyone,
        is_on_request=webhook.is_on_request,
        created_at=webhook.created_at,
        num_waiting=counts.get((webhook.number, WAITING_TO_BE_SENT), 0),
        num_given_up=counts.get((webhook.number, GIVEN_UP), 0),
    )


def _delivery_view(delivery: Delivery) -> wire.DeliveryView:
    return wire.DeliveryView(
        delivery=delivery.uuid,
        webhook=delivery.webhook,
        event=sentence(delivery.event),
        state=delivery.state,
        num_attempts=delivery.num_attempts,
        status=delivery.status,
        reason=delivery.reason,
        created_at=delivery.created_at,
        next_at=delivery.next_at,
        ended_at=delivery.ended_at,
    )
