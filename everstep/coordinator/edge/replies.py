"""Send a reply: a message or an error, as JSON. Errors carry a sentence for people and a code for programs."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from everstep import wire
from everstep.coordinator.edge.bodies import Scope
from everstep.errors import EverstepError, Refused

Send = Callable[[Any], Awaitable[None]]
Header = tuple[bytes, bytes]

FAILING = "everstep.failing"  # in a scope: called for each refusal, returns another one if there were too many
UNKNOWN_CALLER = 401

_LAST = (400, 401, 403, 413, 414, 429, 431)  # a body that was not read to its end leaves the connection unusable


def encode(message: Any) -> bytes:
    if isinstance(message, bytes):
        return message
    return b"{}" if message is None else wire.to_json(message)


def encode_error(detail: str, code: str) -> bytes:
    return json.dumps({"detail": detail, "code": code}).encode()


async def send_error(
    send: Send, error: EverstepError, scope: Scope | None = None, more_headers: Sequence[Header] = ()
) -> None:
    """`scope`: of a caller with a valid token, whose refusals are counted."""
    if scope is not None and isinstance(error, Refused) and FAILING in scope:
        error = scope[FAILING](scope) or error
    status = error.status if isinstance(error, Refused) else 503  # all else is the server's problem: worth a retry
    headers = list(more_headers)
    if status in _LAST:
        headers.append((b"connection", b"close"))
    if status == UNKNOWN_CALLER:
        headers.append((b"www-authenticate", f'Bearer realm="{wire.REALM}"'.encode()))
    if isinstance(error, Refused) and error.wait_s:
        headers.append((b"retry-after", b"%d" % error.wait_s))
    await send_json(send, status, encode_error(error.message, error.code), headers)


async def send_json(send: Send, status: int, content: bytes, more_headers: Sequence[Header] = ()) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content)), *more_headers]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
