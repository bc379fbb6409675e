"""All webhooks of a coordinator, in memory as in the store."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from everstep.coordinator.store.store import Store
from everstep.coordinator.store.webhook_rows import (
    forget_webhook,
    read_webhook_secrets,
    read_webhooks,
    write_webhook,
)
from everstep.coordinator.webhooks.facts import Webhook, WebhookSecret


class WebhookBook:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.webhooks: Sequence[Webhook] = ()
        self._secrets: dict[int, WebhookSecret] = {}

    async def load(self) -> None:
        def read(connection: Connection) -> tuple[list[Webhook], dict[int, WebhookSecret]]:
            return read_webhooks(connection), read_webhook_secrets(connection)

        self.webhooks, self._secrets = await self._store.in_thread(lambda: self._store.read(read))

    def find(self, number: int) -> Webhook | None:
        return next((each for each in self.webhooks if each.number == number), None)

    def secret(self, webhook: Webhook) -> WebhookSecret:
        return self._secrets[webhook.number]

    async def add(self, webhook: Webhook, secret: WebhookSecret) -> None:
        try:
            await self._store.write(lambda connection: write_webhook(connection, webhook, secret))
        except BaseException:  # it may have reached the store
            await self.load()
            raise
        self.webhooks, self._secrets[webhook.number] = (*self.webhooks, webhook), secret

    async def remove(self, webhook: Webhook) -> None:
        await self._store.write(lambda connection: forget_webhook(connection, webhook.number))
        self.webhooks = tuple(each for each in self.webhooks if each.number != webhook.number)
        self._secrets.pop(webhook.number, None)
