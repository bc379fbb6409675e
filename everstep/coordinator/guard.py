"""In front of everything else: who calls, whether they may, and whether they fail too often.

Calls without a valid token are few per address, so that guessing and loops cost us next to nothing. Who has one is
never held up by others: only calls of theirs that fail are counted, and too many of them get 429 for an answer.
Calls that succeed are not limited here: thousands of heartbeats come from one address."""

from __future__ import annotations

import math
import time
from typing import Any

from everstep.coordinator.bodies import Receive, Scope
from everstep.coordinator.buckets import Buckets
from everstep.coordinator.door import KnownTokens, decide_entry, refused
from everstep.coordinator.express import Send, send_error
from everstep.errors import Refused
from everstep.tokens import Token

STRANGERS_PER_S, STRANGERS_AT_ONCE = 10.0, 100  # calls without a valid token, from one address
FAILURES_PER_S, FAILURES_AT_ONCE = (
    500.0,
    10_000,
)  # refused calls with one token from one address: a whole job's, at once
MAX_CALLERS = 10_000  # remembered at a time
TOO_MANY = 429


class Guard:
    def __init__(self, app: Any, tokens: KnownTokens) -> None:
        self._app, self._tokens = app, tokens
        self._strangers = Buckets(per_s=STRANGERS_PER_S, at_once=STRANGERS_AT_ONCE, max_keys=MAX_CALLERS)
        self._failures = Buckets(per_s=FAILURES_PER_S, at_once=FAILURES_AT_ONCE, max_keys=MAX_CALLERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        else:
            token = self._tokens.find(scope["headers"])
            entry = decide_entry(token, scope["method"], scope["path"])
            if token is None:
                wait_s = self._strangers.take(_address(scope), time.monotonic())
                await send_error(send, _too_many("without a valid token", wait_s) if wait_s else refused(entry))
            elif entry.status is not None:
                await send_error(self._counting(send, scope, token), refused(entry))
            else:
                await self._app(scope, receive, self._counting(send, scope, token))

    def _counting(self, send: Send, scope: Scope, token: Token) -> Send:
        """Sends what it is given, unless it is one refusal too many."""
        is_replaced = False

        async def count(message: dict[str, Any]) -> None:
            nonlocal is_replaced
            if message["type"] == "http.response.start" and 400 <= message["status"] < 500:
                wait_s = self._failures.take((_address(scope), token.word), time.monotonic())
                if wait_s:
                    is_replaced = True
                    await send_error(send, _too_many("that fail", wait_s))
            if not is_replaced:
                await send(message)

        return count


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _too_many(which: str, wait_s: float) -> Refused:
    return Refused(f"too many calls {which}", status=TOO_MANY, wait_s=math.ceil(wait_s))
