"""What is sent to a webhook: the body of its kind, and the headers with the signature. Pure.

A receiver computes the same HMAC-SHA256 over "timestamp,body" with the webhook's secret, and refuses old timestamps:
so no one else can send an event, and no one can send an old one again."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from typing import Any

from everstep.coordinator.webhooks.triggers import sentence
from everstep.wire.webhooks import SLACK

ID_HEADER = "X-Everstep-Delivery"
TIMESTAMP_HEADER = "X-Everstep-Timestamp"
SIGNATURE_HEADER = "X-Everstep-Signature"
_MOST_SLACK = 3000  # characters of a text


def body_of(kind: str, event: Mapping[str, Any]) -> bytes:
    """The same event always gives the same bytes."""
    content = _slack(event) if kind == SLACK else event
    return json.dumps(content, separators=(",", ":")).encode()


def headers_of(delivery: str, body: bytes, secret: str, now: float) -> dict[str, str]:
    timestamp = str(int(now))
    return {
        "Content-Type": "application/json",
        ID_HEADER: delivery,
        TIMESTAMP_HEADER: timestamp,
        SIGNATURE_HEADER: signature(secret, timestamp, body),
    }


def signature(secret: str, timestamp: str, body: bytes) -> str:
    return hmac.digest(secret.encode(), f"{timestamp},".encode() + body, "sha256").hex()


def _slack(event: Mapping[str, Any]) -> dict[str, Any]:
    """Slack reads <…> as links and mentions: names and reasons come from scripts, and must notify no one."""
    text = sentence(event)[:_MOST_SLACK]
    for character, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, name)
    return {"text": text}
