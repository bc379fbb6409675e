"""In front of everything else: does the caller have a valid token, does its role suffice, does it fail too often?

Without a token there is nothing to be seen, not even whether a path exists. Calls without one are limited per address,
so that guessing and loops cost next to nothing. Callers with a token are never held up by others: only their own calls
that fail are counted, and too many of them are answered with 429. Calls that succeed are not limited: thousands of
heartbeats come from one address."""

from __future__ import annotations

import hmac
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

from everstep.coordinator.edge.bodies import Receive, Scope
from everstep.coordinator.edge.rate_limit import Buckets
from everstep.coordinator.edge.replies import FAILING, UNKNOWN_CALLER, Send, send_error
from everstep.errors import Refused, UsageError
from everstep.wire.tokens import Token

STRANGERS_PER_S, STRANGERS_AT_ONCE = 10.0, 100  # calls without a valid token, from one address
FAILURES_PER_S, FAILURES_AT_ONCE = 500.0, 10_000  # refused calls with one token from one address
MAX_CALLERS = 10_000  # remembered at a time
MAX_HEADERS = 100
MAX_URL_BYTES = 1 << 13
FORBIDDEN, TOO_MANY = 403, 429

TOKEN = "everstep.token"  # in a scope: the caller's


class KnownTokens:
    """Compares in a time that does not depend on what was sent."""

    def __init__(self, tokens: Iterable[Token]) -> None:
        self._expected: Sequence[tuple[bytes, Token]] = [(f"Bearer {token.word}".encode(), token) for token in tokens]
        if not self._expected:
            raise UsageError("a coordinator without a token would serve anyone", code="no-token-to-serve")

    def find(self, headers: Iterable[tuple[bytes, bytes]]) -> Token | None:
        for name, value in headers:
            if name == b"authorization":
                found = None
                for expected, token in self._expected:
                    if hmac.compare_digest(value, expected):
                        found = token
                return found
        return None


def decide_role(token: Token, needed: str) -> Refused | None:
    """None: the call may be made."""
    if token.may(needed):
        return None
    text = f"the token's role is {token.role}, and this needs {needed}"
    return Refused(text, status=FORBIDDEN, code="role-insufficient")


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
        elif token := self._tokens.find(scope["headers"]):
            scope[TOKEN], scope[FAILING] = token, self._failing
            if problem := _head_problem(scope):
                await send_error(send, problem, scope)
            else:
                await self._app(scope, receive, send)
        else:
            await send_error(send, self._stranger(scope))

    def _stranger(self, scope: Scope) -> Refused:
        if wait_s := self._strangers.take(_address(scope), time.monotonic()):
            return _too_many("without a valid token", wait_s)
        return Refused("a valid bearer token is needed", status=UNKNOWN_CALLER, code="token-unknown")

    def _failing(self, scope: Scope) -> Refused | None:
        """Another call of this caller is refused: is it one too many?"""
        wait_s = self._failures.take((_address(scope), scope[TOKEN].word), time.monotonic())
        return _too_many("that fail", wait_s) if wait_s else None


def _head_problem(scope: Scope) -> Refused | None:
    if len(scope["headers"]) > MAX_HEADERS:
        text = f"{len(scope['headers'])} headers are more than {MAX_HEADERS}"
        return Refused(text, status=431, code="too-many-headers")
    if len(scope["path"]) > MAX_URL_BYTES:
        return Refused(f"the URL is longer than {MAX_URL_BYTES} bytes", status=414, code="url-too-long")
    return None


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _too_many(which: str, wait_s: float) -> Refused:
    return Refused(f"too many calls {which}", status=TOO_MANY, wait_s=math.ceil(wait_s), code="too-many-calls")
