"""In front of everything else: who calls, whether they may, and whether they fail too often.

Calls without a valid token are few per address, so that guessing and loops cost us next to nothing. Who has one is
never held up by others: only calls of theirs that fail are counted, and too many of them get 429 for an answer.
Calls that succeed are not limited here: thousands of heartbeats come from one address."""

from __future__ import annotations

import math
import time
from typing import Any

from everstep.coordinator.edge.access import KnownTokens, decide_entry, refused
from everstep.coordinator.edge.bodies import Receive, Scope
from everstep.coordinator.edge.hot_calls import FAILING, Send, send_error
from everstep.coordinator.edge.rate_limit import Buckets
from everstep.errors import Refused

STRANGERS_PER_S, STRANGERS_AT_ONCE = 10.0, 100  # calls without a valid token, from one address
FAILURES_PER_S, FAILURES_AT_ONCE = (
    500.0,
    10_000,
)  # refused calls with one token from one address
MAX_CALLERS = 10_000  # remembered at a time
MAX_HEADERS = 100
MAX_URL_BYTES = 1 << 13
TOO_MANY = 429


class Guard:
    def __init__(self, app: Any, tokens: KnownTokens) -> None:
        self._app, self._tokens = app, tokens
        self._strangers = Buckets(per_s=STRANGERS_PER_S, at_once=STRANGERS_AT_ONCE, max_keys=MAX_CALLERS)
        self._failures = Buckets(per_s=FAILURES_PER_S, at_once=FAILURES_AT_ONCE, max_keys=MAX_CALLERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._serve_other(scope, receive, send)
            return
        token = self._tokens.find(scope["headers"])
        entry = decide_entry(token, scope["method"], scope["path"])
        if token is None:
            wait_s = self._strangers.take(_address(scope), time.monotonic())
            await send_error(send, _too_many("without a valid token", wait_s) if wait_s else refused(entry))
            return
        scope[FAILING] = self._failing
        if entry.status is not None:
            await send_error(send, refused(entry), scope)
        elif len(scope["headers"]) > MAX_HEADERS or len(scope["path"]) > MAX_URL_BYTES:
            await send_error(send, _head_problem(scope), scope)
        else:
            await self._app(scope, receive, send)

    async def _serve_other(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _failing(self, scope: Scope) -> Refused | None:
        """One more call of this caller is refused: is it one too many?"""
        token = self._tokens.find(scope["headers"])
        assert token is not None
        wait_s = self._failures.take((_address(scope), token.word), time.monotonic())
        return _too_many("that fail", wait_s) if wait_s else None


def _head_problem(scope: Scope) -> Refused:
    if len(scope["headers"]) > MAX_HEADERS:
        return Refused(f"{len(scope['headers'])} headers are more than {MAX_HEADERS}", status=431)
    return Refused(f"the URL is longer than {MAX_URL_BYTES} bytes", status=414)


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _too_many(which: str, wait_s: float) -> Refused:
    return Refused(f"too many calls {which}", status=TOO_MANY, wait_s=math.ceil(wait_s))
