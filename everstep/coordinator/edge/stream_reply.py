"""The stream as an HTTP reply without end: server-sent events, until the reader goes or is too slow, or its session or
this process ends.

Nothing is queued for a reader: while the connection takes no more, it waits, and if that lasts too long it is cut. It
comes back by itself, and takes up where it was."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import parse_qsl

from everstep.coordinator.edge.connection import HANG_UP
from everstep.coordinator.edge.guard import IS_SIGNED_IN, MethodNotAllowed, Receive, Scope, Send
from everstep.coordinator.stream import LIST, LiveStream, Reader, encode, is_job
from everstep.errors import Refused
from everstep.wire.page_bounds import MOST_COMPARED, MOST_TOPICS

STREAM = "/v1/stream"
BEAT_S = 10.0
SLOW_S = 10.0  # a reader that takes nothing for this long is cut

_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
_AGAIN = b"retry: 1000\n\n"  # ms until a browser comes back


class StreamReply:
    def __init__(self, stream: LiveStream, knows: Callable[[str], Awaitable[bool]]) -> None:
        """`knows`: whether there is a job of this name, or another topic; what there is not is not followed."""
        self._stream, self._knows = stream, knows

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            raise MethodNotAllowed(("GET",))
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        headers: Mapping[bytes, bytes] = dict(scope["headers"])
        after = headers.get(b"last-event-id", b"").decode("latin-1") or query.get("after", "")
        jobs = [each for each in query.get("jobs", "").split(",") if each]
        topics = [each for each in query.get("topics", "").split(",") if not is_job(each)]
        for wanted, most, what in ((jobs, MOST_COMPARED, "jobs"), (topics, MOST_TOPICS, "topics")):
            if len(wanted) > most:
                text = f"cannot follow {len(wanted)} {what}; the limit is {most}"
                raise Refused(text, status=422, code="parameter-invalid")
        known = [each for each in (*filter(is_job, jobs), *topics) if await self._knows(each)]
        reader = self._stream.open_reader([LIST, *known], after)
        gone = asyncio.ensure_future(_until_gone(receive, reader))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await self._tell(reader, scope, send, gone, _AGAIN + reader.begin(is_new=not after))
        finally:
            gone.cancel()
            reader.close()

    async def _tell(self, reader: Reader, scope: Scope, send: Send, gone: asyncio.Future[None], said: bytes) -> None:
        loop = asyncio.get_running_loop()
        while not gone.done():
            # By timers of the loop: `wait_for` would make a task for each message of each reader.
            slow = loop.call_later(SLOW_S, scope.get(HANG_UP, gone.cancel))
            await send({"type": "http.response.body", "body": said, "more_body": True})
            slow.cancel()
            if self._stream.is_closed:
                await send({"type": "http.response.body", "body": encode("bye", {}), "more_body": False})
                return
            beat = loop.call_later(BEAT_S, reader.has_news.set)
            await reader.has_news.wait()
            beat.cancel()
            reader.has_news.clear()
            if IS_SIGNED_IN in scope and not scope[IS_SIGNED_IN]():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            if (taken := reader.take()) is None:
                await _cut(scope, gone)
                return
            said = taken or b": beat\n\n"


async def _until_gone(receive: Receive, reader: Reader) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    reader.has_news.set()


async def _cut(scope: Scope, gone: asyncio.Future[None]) -> None:
    """With what the connection still holds: it would wait for the reader as long as that lives."""
    if HANG_UP in scope:
        scope[HANG_UP]()
        await asyncio.wait([gone], timeout=1.0)
