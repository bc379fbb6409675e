"""What answers the operations about webhooks: see `handlers`."""

from __future__ import annotations

from everstep import wire
from everstep.coordinator.edge.guard import TOKEN
from everstep.coordinator.edge.handlers import HttpCall


async def alert(call: HttpCall, message: wire.Alert) -> wire.AlertKept:
    return await call.service.trials.alert(call.job_name, message)


async def create_webhook(call: HttpCall, new: wire.NewWebhook) -> wire.CreatedWebhook:
    return await call.service.webhooks.create(new, call.scope[TOKEN])


async def webhooks(call: HttpCall) -> wire.WebhookList:
    return await call.service.webhooks.list_all(call.scope[TOKEN])


async def test_webhook(call: HttpCall, webhook: int) -> wire.WebhookAnswer:
    return await call.service.webhooks.test(webhook, call.scope[TOKEN])


async def delete_webhook(call: HttpCall, webhook: int) -> None:
    await call.service.webhooks.delete(webhook, call.scope[TOKEN])


async def deliveries(call: HttpCall, webhook: int, *, start: int = 0, limit: int = 100) -> wire.DeliveryList:
    return await call.service.webhooks.deliveries(webhook, start, limit, call.scope[TOKEN])
