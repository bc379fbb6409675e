"""A connection that is not waited for without end: a request must come in whole within `REQUEST_S` of its first byte.

Who was served here last may ask to hear of its end (`WHEN_LOST` in a scope): that of an agent is news.

One timer per connection looks twice in that time whether the same request is still on its way: requests that come in at
once, which all do, pay nothing for it. A head without end is refused while it comes in; how many bytes a body may have
is seen to by `bodies`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

REQUEST_S = 20.0
MAX_HEAD_BYTES = 1 << 16

WHEN_LOST = "everstep.when_lost"  # in a scope: called with what to do if the connection ends before its next request

_NOTHING = object()  # is on its way


class HttpConnection(HttpToolsProtocol):
    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._seen: object = _NOTHING  # what was on its way at the last look
        self._num_head_bytes = 0
        self._when_lost: Callable[[], None] | None = None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._when_lost = None
        self.scope[WHEN_LOST] = self._keep_when_lost  # type: ignore[literal-required]

    def _keep_when_lost(self, tell: Callable[[], None]) -> None:
        self._when_lost = tell

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(REQUEST_S / 2, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)
        if self._when_lost is not None:
            self._when_lost()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and self.cycle.scope is self.scope:
            self._num_head_bytes = 0
            return
        self._num_head_bytes += len(data)
        if self._num_head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431, f"the head is longer than {MAX_HEAD_BYTES} bytes")

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _on_its_way(self) -> object:
        """A request of which something is missing; also of a new connection: whoever connects has something to say."""
        if self.cycle is None or self.cycle.scope is not self.scope:
            return self.scope
        return self.scope if self.cycle.more_body and not self.cycle.response_complete else _NOTHING

    def _look(self) -> None:
        coming = self._on_its_way()
        is_late = coming is not _NOTHING and coming is self._seen
        self._seen = coming
        if not is_late:
            self._timer = self.loop.call_later(REQUEST_S / 2, self._look)
        elif not self.transport.is_closing():
            self._refuse(408, f"the request did not come in whole within {REQUEST_S:.0f} s")

    def _refuse(self, status: int, detail: str) -> None:
        """Hang up, with a word of why unless an answer is under way."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            content = json.dumps({"detail": detail}).encode()
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + content)
        self.transport.close()
