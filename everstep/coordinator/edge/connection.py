"""A connection with a deadline: a request must arrive completely within `REQUEST_S` of its first byte.

A handler may ask to be called when the connection ends (`WHEN_LOST` in a scope): the end of an agent's is news.

Calls that all workers make at the same moment wait for their turn, unread; all others pass at once.

One timer per connection checks twice in that time whether the same request is still arriving, so requests that arrive
at once, as usual, pay nothing for it. An endless head is refused while it arrives; `dispatch` limits the body. Code is
long: there, something must arrive all the time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from everstep.coordinator.edge.guard import WRITE_REPLY, Scope, encode_error
from everstep.coordinator.turns import Turns

REQUEST_S = 20.0
MAX_HEAD_BYTES = 1 << 16

WHEN_LOST = "everstep.when_lost"  # in a scope: takes what to call if the connection ends before its next request
HANG_UP = "everstep.hang_up"  # in a scope: ends the connection at once, with what was not sent yet

UPLOADS = "/v1/code/"  # paths of what may take longer to arrive

_NOTHING = object()  # is arriving
_PATIENT = {b"announce", b"arrive", b"settled", b"watch"}  # the ends of these calls' paths
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_LONGEST_LINE = 512  # of a request, up to the end of its path: a call with a longer one does not wait


class HttpConnection(HttpToolsProtocol):
    def __init__(self, turns: Turns, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._turns = turns
        self._unread = b""  # what waits for its turn
        self._seen: object = _NOTHING  # what was arriving at the last check
        self._num_head_bytes = 0
        self._when_lost: Callable[[], None] | None = None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._when_lost = None
        self.scope[WHEN_LOST] = self._keep_when_lost  # type: ignore[literal-required]
        self.scope[WRITE_REPLY] = self._write_reply  # type: ignore[literal-required]
        self.scope[HANG_UP] = self.transport.abort  # type: ignore[literal-required]

    def _keep_when_lost(self, tell: Callable[[], None]) -> None:
        self._when_lost = tell

    def _write_reply(self, scope: Scope, content: bytes) -> bool:
        """Head and content in one packet: in two, as uvicorn writes them, a reply costs both sides twice as much."""
        cycle = self.cycle
        if cycle.scope is not scope or not cycle.keep_alive or cycle.disconnected:
            return False
        if self.flow.write_paused or scope["method"] == "HEAD":
            return False
        cycle.response_started = cycle.response_complete = True
        self.transport.write(_HEAD % len(content) + content)
        cycle.on_response()
        return True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(REQUEST_S / 2, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._unread = b""
        super().connection_lost(exc)
        if self._when_lost is not None:
            self._when_lost()

    def data_received(self, data: bytes) -> None:
        if self._unread:
            self._unread += data
            if len(self._unread) > MAX_HEAD_BYTES:
                self.flow.pause_reading()
        elif self._is_between_calls() and _is_patient(data):
            if self._turns.may_pass():
                self._read(data)
            else:
                self._unread = data
                self._unset_keepalive_if_required()
                self._turns.wait(self)
        else:
            self._turns.pass_by()
            self._read(data)
            if self.cycle is not None and self.cycle.scope["path"].startswith(UPLOADS):
                self._seen = _NOTHING

    def _is_between_calls(self) -> bool:
        return not self._num_head_bytes and (self.cycle is None or self.cycle.response_complete)

    def take_turn(self) -> bool:
        data, self._unread = self._unread, b""
        if not data or self.transport.is_closing():
            return False
        self.flow.resume_reading()
        self._read(data)
        return True

    def _read(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and self.cycle.scope is self.scope:
            self._num_head_bytes = 0
            return
        self._num_head_bytes += len(data)
        if self._num_head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431, f"the head is longer than {MAX_HEAD_BYTES} bytes", "head-too-long")

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg, "request-malformed")

    def _arriving(self) -> object:
        """An incomplete request; a new connection counts as one, since its caller must have something to send."""
        if self._unread:
            return _NOTHING
        if self.cycle is None or self.cycle.scope is not self.scope:
            return self.scope
        return self.scope if self.cycle.more_body and not self.cycle.response_complete else _NOTHING

    def _look(self) -> None:
        arriving = self._arriving()
        is_late = arriving is not _NOTHING and arriving is self._seen
        self._seen = arriving
        if not is_late:
            self._timer = self.loop.call_later(REQUEST_S / 2, self._look)
        elif not self.transport.is_closing():
            self._refuse(408, f"the request did not arrive completely within {REQUEST_S:.0f} s", "request-too-slow")

    def _refuse(self, status: int, detail: str, code: str) -> None:
        """Hang up, after sending the reason unless an answer is being sent."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            content = encode_error(detail, code)
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + content)
        self.transport.close()


def _is_patient(data: bytes) -> bool:
    """Whether a call begins here that may wait."""
    end = data.find(b" HTTP/", 0, _LONGEST_LINE)
    return end > 0 and data[data.rfind(b"/", 0, end) + 1 : end] in _PATIENT
