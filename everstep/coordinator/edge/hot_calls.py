"""The calls of workers, `POST /v1/jobs/{job}/workers/{worker}/{call}`, without a framework between bytes and job;
and agents' reports, because these are held and their breaking off is news.

Thousands of workers make them all the time, and all at once when a generation is closed: what the usual layers cost
per request is more than the request itself. Everything else goes on to the application behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from everstep import wire
from everstep.coordinator.edge.access import UNKNOWN_CALLER
from everstep.coordinator.edge.bodies import Receive, Scope, check_name, parse, read_body
from everstep.coordinator.edge.connection import WHEN_LOST
from everstep.coordinator.job import CoordinatedJob
from everstep.coordinator.service import Service
from everstep.errors import EverstepError, Refused

Send = Callable[[dict[str, Any]], Awaitable[None]]
Call = Callable[[CoordinatedJob, str, Any], Awaitable[Any]]
Header = tuple[bytes, bytes]

FAILING = "everstep.failing"  # in a scope: asked for each refusal, answers with another one if there are too many

_LAST = (400, 401, 403, 413, 414, 429, 431)  # a body that was not read to its end leaves the connection unusable

REPORT = "report"  # an agent's, all others are workers'
CALLS: dict[str, tuple[type[Any], Call]] = {
    "announce": (wire.Announce, CoordinatedJob.announce),
    "arrive": (wire.Arrive, CoordinatedJob.arrive),
    "watch": (wire.Watch, CoordinatedJob.watch),
    "broken": (wire.Broken, CoordinatedJob.broken),
    "settled": (wire.Settled, CoordinatedJob.settled),
    "leave": (wire.Leave, CoordinatedJob.leave),
    "lease": (wire.LeaseRequest, CoordinatedJob.lease),
    "exited": (wire.WorkerExit, CoordinatedJob.exited),
    REPORT: (wire.AgentReport, CoordinatedJob.report),
}


class Express:
    def __init__(self, app: Any, find_service: Callable[[], Service]) -> None:
        self._app, self._find_service = app, find_service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (found := _route(scope)):
            await self._serve(*found, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _serve(self, job: str, name: str, call: str, scope: Scope, receive: Receive, send: Send) -> None:
        kind, method = CALLS[call]
        answer: Any
        try:
            service = self._find_service()
            check_name("agent" if call == REPORT else "worker", name)
            found = service.job_at_hand(job) or await service.job(job)
            message = parse(kind, await read_body(scope, receive))
            if call == REPORT:
                answer = await _report(found, name, message, receive)
                if WHEN_LOST in scope:
                    scope[WHEN_LOST](lambda: found.may_be_gone(name, message))
            else:
                answer = await method(found, name, message)
        except EverstepError as error:
            await send_error(send, error, scope)
        else:
            await send_json(send, 200, answer if isinstance(answer, bytes) else encode(answer))


def _route(scope: Scope) -> tuple[str, str, str] | None:
    parts = scope["path"].split("/")
    if len(parts) != 7 or scope["method"] != "POST":
        return None
    _, version, jobs, job, whose, name, call = parts
    is_ours = (
        (version, jobs) == ("v1", "jobs") and call in CALLS and whose == ("agents" if call == REPORT else "workers")
    )
    return (job, name, call) if is_ours else None


async def _report(job: CoordinatedJob, agent: str, message: wire.AgentReport, receive: Receive) -> wire.AgentOrders:
    """While an agent waits for orders, its end is seen at once: the kernel closes its connection."""
    orders = asyncio.ensure_future(job.report(agent, message))
    hanging_up = asyncio.ensure_future(receive())
    try:
        await asyncio.wait({orders, hanging_up}, return_when=asyncio.FIRST_COMPLETED)
        if not orders.done():
            job.hung_up(agent, message)
        return await orders
    finally:
        hanging_up.cancel()
        orders.cancel()


def encode(message: Any) -> bytes:
    return b"{}" if message is None else wire.to_json(message)


async def send_error(
    send: Send, error: EverstepError, scope: Scope | None = None, more_headers: Sequence[Header] = ()
) -> None:
    """`scope`: of a caller who is known; too many refusals are answered otherwise."""
    if scope is not None and isinstance(error, Refused) and FAILING in scope:
        error = scope[FAILING](scope) or error
    status = error.status if isinstance(error, Refused) else 503  # all else is ours, and worth another try
    headers = list(more_headers)
    if status in _LAST:
        headers.append((b"connection", b"close"))
    if status == UNKNOWN_CALLER:
        headers.append((b"www-authenticate", f'Bearer realm="{wire.REALM}"'.encode()))
    if isinstance(error, Refused) and error.wait_s:
        headers.append((b"retry-after", b"%d" % error.wait_s))
    await send_json(send, status, json.dumps({"detail": error.message}).encode(), headers)


async def send_json(send: Send, status: int, content: bytes, more_headers: Sequence[Header] = ()) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content)), *more_headers]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
