"""A webhook and its deliveries as stored: rows as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from everstep.wire.webhooks import DEFAULT_KIND, WAITING_TO_BE_SENT


@dataclass(frozen=True, kw_only=True, slots=True)
class Webhook:
    number: int
    request: str
    name: str
    address: str  # of its URL, without what may hold a token
    kind: str = DEFAULT_KIND
    triggers: tuple[str, ...] = ()
    log_patterns: tuple[str, ...] = ()
    experiment: int = 0  # the only one that it is for; 0: all of its owner's
    owner: str = ""  # a person's name; "": of a token without one
    is_for_everyone: bool = False
    is_on_request: bool = False
    created_at: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WebhookSecret:
    """Kept apart from the webhook; never shown again, and never logged."""

    url: str = field(repr=False)
    secret: str = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """An event on its way to a webhook."""

    uuid: str  # the same at each attempt
    webhook: int
    event: Mapping[str, Any]  # the JSON of a default webhook
    created_at: float
    next_at: float
    state: str = WAITING_TO_BE_SENT
    num_attempts: int = 0
    status: int = 0  # of the last answer
    reason: str = ""  # of the last failure
    ended_at: float | None = None
