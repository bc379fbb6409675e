"""Serve the record of a job that is over to this machine: the same page, the same calls, and nothing that changes.

The calls answer from the record's files (`finished_record`), one after the other in a thread. The stream is there, so
that the page need not know the difference, and says nothing."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import uvicorn

from everstep import wire
from everstep.coordinator.edge.connection import HttpConnection
from everstep.coordinator.edge.dispatch import Routes
from everstep.coordinator.edge.guard import TOKEN, Guard, KnownTokens, Receive, Scope, Send, check_role, send_json
from everstep.coordinator.edge.openapi import document
from everstep.coordinator.edge.page_door import PageDoor
from everstep.coordinator.edge.server import Server, bind, url_of
from everstep.coordinator.edge.stream_reply import STREAM, StreamReply
from everstep.coordinator.finished_record import FinishedRecord
from everstep.coordinator.job_listing import CHECKPOINT, MOST_CHECKPOINTS, checkpoint_views, compared_values
from everstep.coordinator.store.mark_rows import load_marks, load_summaries
from everstep.coordinator.stream import LiveStream
from everstep.coordinator.turns import Turns
from everstep.errors import UNKNOWN, Refused, UsageError
from everstep.page.address import page_address
from everstep.page.sessions import Sessions
from everstep.page.static_files import StaticFiles
from everstep.wire.metrics import MOST_SERIES
from everstep.wire.operations import OPERATIONS
from everstep.wire.page import FINISHED, STOPPED
from everstep.wire.tokens import READ_ONLY, Token


def serve_record(record: FinishedRecord, port: int, show: Callable[[str], None]) -> None:
    """On loopback, until SIGTERM or SIGINT. `show` gets the address that opens the page once."""
    token = Token(role=READ_ONLY, word=secrets.token_urlsafe(32))
    sessions = Sessions([token])
    with closing(bind("127.0.0.1", port)) as listener:
        url = url_of(listener, "http")

        def on_ready() -> None:
            show(page_address(url, sessions.printed_code(time.time()), record.job))

        app = RecordApp(record, on_ready)
        config = uvicorn.Config(
            Guard(app, KnownTokens([token]), PageDoor(sessions, StaticFiles())),
            http=partial(HttpConnection, Turns()),  # type: ignore[arg-type]
            access_log=False,
            log_level="warning",
            server_header=False,
            date_header=False,
            ws="none",
            lifespan="on",
            proxy_headers=False,
            timeout_graceful_shutdown=1,
        )
        Server(config, app.let_go).run(sockets=[listener])


class RecordApp:
    """The record as an ASGI application, behind the guard."""

    def __init__(self, record: FinishedRecord, on_ready: Callable[[], None]) -> None:
        self._answers, self._on_ready = RecordAnswers(record), on_ready
        self._job, self._routes = record.job, Routes(OPERATIONS)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="record")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        check_role(scope[TOKEN], READ_ONLY)
        if scope["path"] == STREAM:
            await StreamReply(self._stream, self._knows)(scope, receive, send)
            return
        route, parts = self._routes.find(scope["method"], scope["path"])
        answer = getattr(self._answers, route.operation.name, None)
        if answer is None or route.operation.method != "GET":
            text = f"job {self._job} is over: its record can only be read"
            raise Refused(text, code="record-read-only")
        if route.job_at is not None and parts[route.job_at] != self._job:
            raise Refused(f"this is the record of {self._job} alone", status=UNKNOWN, code="job-unknown")
        values = [read(parts[index]) for index, read in route.readers]
        query = route.read_query(scope["query_string"])
        reply = await asyncio.get_running_loop().run_in_executor(self._thread, partial(_encoded, answer, values, query))
        await send_json(send, 200, reply)

    async def _knows(self, job: str) -> bool:
        return job == self._job

    def let_go(self) -> None:
        self._stream.close()

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        self._stream = LiveStream(epoch=time.time_ns() // 1_000_000)
        self._on_ready()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._thread.shutdown()
        await send({"type": "lifespan.shutdown.complete"})


def _encoded(answer: Callable[..., Any], values: list[Any], query: dict[str, Any]) -> bytes:
    try:
        return wire.to_json(answer(*values, **query))
    except UsageError as error:
        raise Refused(error.message, status=422, hint=error.hint, code=error.code) from None


class RecordAnswers:
    """One method for each operation that a record can answer, by its name."""

    def __init__(self, record: FinishedRecord) -> None:
        self._record, self._job = record, record.job
        self.view, self.generation, self.reports = record.view, record.generation, record.reports
        self.series, self.series_window, self.logs = record.series, record.series_window, record.logs

    def check(self) -> wire.Health:
        return wire.Health(now=time.time())

    def openapi(self) -> dict[str, Any]:
        return document()

    def band(self, after: int = 0, limit: int = 1000) -> wire.Band:
        with self._record.store() as connection:
            marks = load_marks(connection, self._job, after, limit)
        return wire.Band(marks=marks, last=marks[-1].number if marks else after)

    def jobs(self, **_query: Any) -> wire.JobList:
        return wire.JobList(jobs=[self._summary()], num_found=1, num_jobs=1)

    def about(self) -> wire.JobAbout:
        found = checkpoint_views(self._record.newest_reports(CHECKPOINT, MOST_CHECKPOINTS))
        return wire.JobAbout(summary=self._summary(), policy=self._policy(), config=self._config(), checkpoints=found)

    def compare(self, jobs: str = "") -> wire.JobComparison:
        names = [each for each in jobs.split(",") if each]
        series = self._record.series(0, MOST_SERIES, is_own=True).series
        this = wire.ComparedJob(
            summary=self._summary(), policy=self._policy(), config=self._config(), values=compared_values(series)
        )
        return wire.JobComparison(
            jobs=[this] if self._job in names else [], unknown=[each for each in names if each != self._job]
        )

    def _summary(self) -> wire.JobSummary:
        with self._record.store() as connection:
            (found,) = load_summaries(connection, [self._job])
        if found.state in (FINISHED, STOPPED):
            return found
        return replace(found, state=STOPPED, reason=f"a record {self._record.lacks_end() or 'without an end'}")

    def _policy(self) -> dict[str, Any]:
        return asdict(self._record.roster().policy)

    def _config(self) -> dict[str, Any]:
        return dict(self._record.about.configuration) or dict(self._record.roster().config)
