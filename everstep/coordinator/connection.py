"""A connection that is not waited for without end: a request must come in whole within `REQUEST_S` of its first byte.

One timer per connection, not per request: heartbeats pay two assignments. Heads that are too long are refused while
they come in; how many bytes a body may have is seen to by `bodies`."""

from __future__ import annotations

import asyncio
import json
import time
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

REQUEST_S = 20.0
MAX_HEAD_BYTES = 1 << 16
MAX_HEADERS = 100
MAX_URL_BYTES = 1 << 13


class Connection(HttpToolsProtocol):
    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._since: float | None = None  # a request has begun and is not here in whole
        self._num_head_bytes: int | None = 0  # None: the head is here
        self._refusal: tuple[int, str] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = time.monotonic()  # whoever connects has something to say
        self._timer = self.loop.call_later(REQUEST_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._num_head_bytes is not None:
            self._num_head_bytes += len(data)
            if self._num_head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self._refuse(431, f"the head is longer than {MAX_HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._since, self._num_head_bytes = time.monotonic(), 0

    def on_headers_complete(self) -> None:
        self._num_head_bytes = None
        if len(self.headers) > MAX_HEADERS:
            self._refusal = (431, f"{len(self.headers)} headers are more than {MAX_HEADERS}")
        elif len(self.url) > MAX_URL_BYTES:
            self._refusal = (414, f"the URL is longer than {MAX_URL_BYTES} bytes")
        if self._refusal:
            raise ValueError("refused")  # ends the parser, which asks for a 400
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._since = None
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(*(self._refusal or (400, msg)))

    def _look(self) -> None:
        due = REQUEST_S if self._since is None else self._since + REQUEST_S - time.monotonic()
        if due > 0:
            self._timer = self.loop.call_later(due, self._look)
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
