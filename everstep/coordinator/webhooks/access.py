"""Who may have which webhooks: administrators all of them, others those for experiments that they may change. Pure."""

from __future__ import annotations

from everstep.coordinator.webhooks.facts import Webhook
from everstep.errors import Refused
from everstep.wire.tokens import Token

_FORBIDDEN = 403


def may_change(webhook: Webhook, caller: Token) -> bool:
    """Change and see it. A webhook without an owner is like an experiment without one: for all whose role allows it."""
    if caller.trial:
        return False
    return caller.is_administrator or (not webhook.is_for_everyone and webhook.owner in ("", caller.person))


def check_may_change(webhook: Webhook, caller: Token) -> None:
    if not may_change(webhook, caller):
        whose = "for everyone" if webhook.is_for_everyone else f"{webhook.owner}'s"
        text = f"webhook {webhook.number} is {whose}; ask an administrator"
        raise Refused(text, status=_FORBIDDEN, code="webhook-of-another")


def check_may_create(webhook: Webhook, caller: Token) -> None:
    if webhook.is_for_everyone and not caller.is_administrator:
        text = "only administrators may create webhooks for the experiments of all people"
        raise Refused(text, status=_FORBIDDEN, code="webhook-for-everyone")
