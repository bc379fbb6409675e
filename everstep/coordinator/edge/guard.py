"""In front of everything else: does the caller have a valid token, does its role suffice, does it fail too often?

Without a token there is nothing to be seen, not even whether a path exists. Calls without one are limited per address,
so that guessing and loops cost next to nothing. Callers with a token are never held up by others: only their own calls
that fail are counted, and too many of them are answered with 429. Calls that succeed are not limited: thousands of
heartbeats come from one address.

A browser has a session instead of a token: the door (`page_door`) answers for the page's own files, and turns a cookie
into what the session may do. All that a browser gets has the headers that keep other sites out.

Every error ends here as a reply: a sentence for people and a code for programs."""

from __future__ import annotations

import hmac
import json
import math
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, MutableMapping, Sequence
from functools import partial
from typing import Any, Protocol

from everstep.coordinator.trial_tokens import TrialTokens
from everstep.errors import EverstepError, Refused, UsageError
from everstep.page import browser
from everstep.wire import REALM
from everstep.wire.tokens import Token

STRANGERS_PER_S, STRANGERS_AT_ONCE = 10.0, 100  # calls without a valid token, from one address
FAILURES_PER_S, FAILURES_AT_ONCE = 500.0, 10_000  # refused calls with one token from one address
MAX_CALLERS = 10_000  # remembered at a time
MAX_HEADERS = 100
MAX_URL_BYTES = 1 << 13
UNKNOWN_CALLER, FORBIDDEN, TOO_MANY = 401, 403, 429
AUTHORIZATION = b"authorization"

TOKEN = "everstep.token"  # in a scope: the caller's, or what a browser's session may do
IS_SIGNED_IN = "everstep.is-signed-in"  # in a browser's scope: asks whether its session is still open
WRITE_REPLY = "everstep.write_reply"  # in a scope: writes the usual reply, or returns False

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[Any], Awaitable[None]]
Header = tuple[bytes, bytes]

_LAST = (400, 401, 403, 413, 414, 429, 431)  # a body that was not read to its end leaves the connection unusable


class KnownTokens:
    """Compares in a time that does not depend on what was sent."""

    def __init__(self, tokens: Iterable[Token], of_trials: TrialTokens | None = None) -> None:
        self._expected: Sequence[tuple[bytes, Token]] = [(f"Bearer {token.word}".encode(), token) for token in tokens]
        self._of_trials = of_trials
        if not self._expected:
            raise UsageError("a coordinator without a token would serve anyone", code="no-token-to-serve")

    def find(self, headers: Iterable[tuple[bytes, bytes]]) -> Token | None:
        for name, value in headers:
            if name == AUTHORIZATION:
                found = None
                for expected, token in self._expected:
                    if hmac.compare_digest(value, expected):
                        found = token
                return found or self._of_trial(value)
        return None

    def _of_trial(self, value: bytes) -> Token | None:
        kind, _, word = value.decode("latin-1").partition(" ")
        return self._of_trials.find(word) if self._of_trials is not None and kind == "Bearer" else None


class Buckets:
    """By key: a burst of `at_once`, then `per_s` per second. Remembers `max_keys` callers at most: the least recent
    ones are forgotten first, and start with a full bucket."""

    def __init__(self, *, per_s: float, at_once: int, max_keys: int) -> None:
        self._per_s, self._at_once, self._max_keys = per_s, at_once, max_keys
        self._left: dict[Hashable, tuple[float, float]] = {}  # how many were left, and when; the latest at the end

    def wait_s(self, key: Hashable, now: float) -> float:
        """The seconds until there is one; 0.0: there is."""
        left, at = self._left.get(key, (float(self._at_once), now))
        return max(0.0, (1.0 - left) / self._per_s - (now - at))

    def take(self, key: Hashable, now: float) -> float:
        """Take one if there is one: 0.0. Else the seconds until there is one."""
        left, at = self._left.pop(key, (float(self._at_once), now))
        left = min(float(self._at_once), left + (now - at) * self._per_s)
        wait_s = 0.0 if left >= 1.0 else (1.0 - left) / self._per_s
        if len(self._left) >= self._max_keys:
            self._left.pop(next(iter(self._left)))
        self._left[key] = (left - 1.0 if wait_s == 0.0 else left, now)
        return wait_s


class MethodNotAllowed(Refused):
    def __init__(self, allowed: Iterable[str]) -> None:
        super().__init__("Method Not Allowed", status=405, code="method-not-allowed")
        self.allowed = ", ".join(allowed)


def check_role(token: Token, needed: str) -> None:
    if not token.may(needed):
        text = f"the token's role is {token.role}, and this needs {needed}"
        raise Refused(text, status=FORBIDDEN, code="role-insufficient")


class BrowserDoor(Protocol):
    """Where browsers come in."""

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Reply if the page's files or its sessions are asked for."""

    def token_of(self, scope: Scope) -> Token | None:
        """What the browser's session may do; None: it names none."""


class Guard:
    def __init__(self, app: Any, tokens: KnownTokens, door: BrowserDoor) -> None:
        self._app, self._tokens, self._door = app, tokens, door
        self._strangers = Buckets(per_s=STRANGERS_PER_S, at_once=STRANGERS_AT_ONCE, max_keys=MAX_CALLERS)
        self._failures = Buckets(per_s=FAILURES_PER_S, at_once=FAILURES_AT_ONCE, max_keys=MAX_CALLERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        scope[TOKEN] = self._tokens.find(scope["headers"])
        if is_browser := scope[TOKEN] is None:
            scope.pop(WRITE_REPLY, None)  # which has no headers for browsers
            send = _for_browsers(send)
        try:
            if len(scope["headers"]) > MAX_HEADERS:
                text = f"{len(scope['headers'])} headers are more than {MAX_HEADERS}"
                raise Refused(text, status=431, code="too-many-headers")
            if len(scope["path"]) > MAX_URL_BYTES:
                raise Refused(f"the URL is longer than {MAX_URL_BYTES} bytes", status=414, code="url-too-long")
            if is_browser:
                if await self._door.answer(scope, receive, send):
                    return
                scope[TOKEN] = self._door.token_of(scope)
                if scope[TOKEN] is None:
                    raise Refused("a valid bearer token is needed", status=UNKNOWN_CALLER, code="token-unknown")
                scope[IS_SIGNED_IN] = partial(self._is_signed_in, scope)
            await self._app(scope, receive, send)
        except EverstepError as error:
            too_many = self._count(scope) if isinstance(error, Refused) else None
            await _send_error(send, too_many or error)

    def _is_signed_in(self, scope: Scope) -> bool:
        try:
            return self._door.token_of(scope) is not None
        except Refused:
            return False

    def _count(self, scope: Scope) -> Refused | None:
        """Another call of this caller is refused: is it one too many?"""
        address, token = scope["client"][0] if scope.get("client") else "", scope[TOKEN]
        if token is None:
            which, wait_s = "without a valid token", self._strangers.take(address, time.monotonic())
        else:
            which, wait_s = "that fail", self._failures.take((address, token.word), time.monotonic())
        if not wait_s:
            return None
        return Refused(f"too many calls {which}", status=TOO_MANY, wait_s=math.ceil(wait_s), code="too-many-calls")


def _for_browsers(send: Send) -> Send:
    async def with_headers(message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = [*message["headers"], *browser.HEADERS]
            if not any(name == b"cache-control" for name, _ in headers):
                headers.append(browser.NO_STORE)
            message = {**message, "headers": headers}
        await send(message)

    return with_headers


def encode_error(detail: str, code: str) -> bytes:
    return json.dumps({"detail": detail, "code": code}).encode()


async def _send_error(send: Send, error: EverstepError) -> None:
    status = error.status if isinstance(error, Refused) else 503  # all else is the server's problem: worth a retry
    headers = [(b"connection", b"close")] if status in _LAST else []
    if status == UNKNOWN_CALLER:
        headers.append((b"www-authenticate", f'Bearer realm="{REALM}"'.encode()))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", error.allowed.encode()))
    if isinstance(error, Refused) and error.wait_s:
        headers.append((b"retry-after", b"%d" % error.wait_s))
    await send_json(send, status, encode_error(error.message, error.code), headers)


async def send_json(send: Send, status: int, content: bytes, more_headers: Sequence[Header] = ()) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content)), *more_headers]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
