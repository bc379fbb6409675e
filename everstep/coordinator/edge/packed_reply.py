"""A long JSON reply, with gzip for those who take it. Packed in a thread, so that no other call waits."""

from __future__ import annotations

import asyncio
import gzip

from starlette.responses import Response

from everstep.coordinator.edge.handlers import HttpCall

_LEAST_BYTES = 4096
_LEVEL = 3  # as short as the highest within a tenth, in a fifth of the time


async def packed(call: HttpCall, content: bytes) -> Response:
    accepted = next((value for name, value in call.scope["headers"] if name == b"accept-encoding"), b"")
    if len(content) < _LEAST_BYTES or b"gzip" not in accepted:
        return Response(content, media_type="application/json")
    body = await asyncio.to_thread(gzip.compress, content, _LEVEL)
    headers = {"content-encoding": "gzip", "vary": "accept-encoding"}
    return Response(body, media_type="application/json", headers=headers)
