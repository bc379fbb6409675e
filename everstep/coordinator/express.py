"""The calls of workers, `POST /v1/jobs/{job}/workers/{worker}/{call}`, without a framework between bytes and job.

Thousands of workers make them all the time, and all at once when a generation is closed: what the usual layers cost
per request is more than the request itself. Everything else goes on to the application behind."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from everstep import wire
from everstep.coordinator.bodies import Receive, Scope, parse, read_body
from everstep.coordinator.job import Job
from everstep.coordinator.service import Service
from everstep.errors import EverstepError, Refused

Send = Callable[[dict[str, Any]], Awaitable[None]]
Call = Callable[[Job, str, Any], Awaitable[Any]]

CALLS: dict[str, tuple[type[Any], Call]] = {
    "announce": (wire.Announce, Job.announce),
    "arrive": (wire.Arrive, Job.arrive),
    "watch": (wire.Watch, Job.watch),
    "broken": (wire.Broken, Job.broken),
    "settled": (wire.Settled, Job.settled),
    "leave": (wire.Leave, Job.leave),
    "exited": (wire.WorkerExit, Job.exited),
}


class Express:
    def __init__(self, app: Any, find_service: Callable[[], Service]) -> None:
        self._app, self._find_service = app, find_service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (found := _route(scope)):
            await self._serve(*found, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _serve(self, job: str, worker: str, call: str, scope: Scope, receive: Receive, send: Send) -> None:
        kind, method = CALLS[call]
        try:
            service = self._find_service()
            found = service.job_at_hand(job) or await service.job(job)
            answer = await method(found, worker, parse(kind, await read_body(scope, receive)))
        except EverstepError as error:
            await send_error(send, error)
        else:
            await send_json(send, 200, answer if isinstance(answer, bytes) else encode(answer))


def _route(scope: Scope) -> tuple[str, str, str] | None:
    parts = scope["path"].split("/")
    if len(parts) != 7 or scope["method"] != "POST":
        return None
    _, version, jobs, job, workers, worker, call = parts
    return (job, worker, call) if (version, jobs, workers) == ("v1", "jobs", "workers") and call in CALLS else None


def encode(message: Any) -> bytes:
    return b"{}" if message is None else wire.to_json(message)


async def send_error(send: Send, error: EverstepError) -> None:
    status = error.status if isinstance(error, Refused) else 503  # all else is ours, and worth another try
    # A body that was not read to its end leaves the connection unusable.
    await send_json(send, status, json.dumps({"detail": error.message}).encode(), is_last=status in (400, 401, 413))


async def send_json(send: Send, status: int, content: bytes, *, is_last: bool = False) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
    if is_last:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
