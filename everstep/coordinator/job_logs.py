"""What jobs print, at the edge: chunks come in, lines go out, each in threads of their own.

One thread writes, some read: the event loop never waits for a disk or a search, and a chunk is answered when it is
kept. Callers that wait for more lines are woken when some come."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from typing import TypeVar

from everstep import wire
from everstep.coordinator.job import CoordinatedJob
from everstep.coordinator.regex_process import RegexProcess
from everstep.coordinator.roster.facts import Roster
from everstep.coordinator.store.log_reader import LogReader
from everstep.coordinator.store.log_store import LogBounds, LogStore, NewLines, WriterPosition
from everstep.coordinator.turns import Turns
from everstep.coordinator.vital_tasks import die
from everstep.coordinator.waiters import Bell
from everstep.errors import Refused, TemporaryError, UsageError
from everstep.record import log_chunk
from everstep.record.log_search import check_query, log_query
from everstep.storage.database import StoreError, StoreTaken

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_WAITING = 64  # calls with chunks that are not yet kept: each may hold a megabyte
NUM_READERS = 4  # threads
SWEEP_S = 600.0  # between two looks for lines that are too old


class JobLogs:
    def __init__(
        self, store: LogStore, turns: Turns, on_lines: Callable[[str, int], None] = lambda _job, _num: None
    ) -> None:
        self._on_lines = on_lines
        self._store, self._reader = store, LogReader(store.engine)
        self.engine = store.engine
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="log store")
        self._reading = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="log reader")
        self._regexes: list[RegexProcess] = []
        self._own = threading.local()
        self._news = Bell(turns)
        self._num_waiting = 0
        self.num_bytes = 0  # kept since the start, as stored
        self._sweeping = asyncio.create_task(self._sweep())

    def let_go(self) -> None:
        """Answer the calls that are held, because the coordinator stops."""
        self._news.close()

    async def close(self) -> None:
        self._sweeping.cancel()
        self.let_go()
        for threads in (self._reading, self._writing):
            await asyncio.to_thread(threads.shutdown)
        for each in self._regexes:
            each.close()
        self._store.close()

    async def keep(self, job: CoordinatedJob, agent: str, message: wire.LogChunks) -> wire.LogsKept:
        roster, policy = job.kept, job.kept.policy
        for name in {*message.asks, *(chunk.worker for chunk in message.chunks)}:
            if name not in roster.workers and not name.startswith(f"{agent}/"):
                raise Refused(f"{name} is not a worker of this job", status=422, code="log-worker-unknown")
        if self._num_waiting >= MAX_WAITING:
            raise TemporaryError(f"{self._num_waiting} calls wait to have chunks kept", code="logs-busy")
        self._num_waiting += 1
        bounds = LogBounds(max_bytes=policy.log_mb * 1_000_000, days=policy.log_days)
        try:
            keep = partial(self._keep, roster, agent, message, bounds)
            positions = await asyncio.get_running_loop().run_in_executor(self._writing, keep)
        except StoreTaken as error:
            die("the coordinator stops", error)
            raise
        finally:
            self._num_waiting -= 1
        self.num_bytes += sum(len(each.data) * 3 // 4 for each in message.chunks)  # base64
        if message.chunks:
            self._news.ring_for(roster.job)
            self._on_lines(roster.job, sum(_num_lines(each) for each in message.chunks))
            self._writing.submit(self._tidy, roster.job, bounds)
        told = [wire.LogPosition(worker=name, **asdict(at)) for name, at in positions.items()]
        return wire.LogsKept(positions=told, node_log_mb=policy.node_log_mb, node_log_days=policy.node_log_days)

    async def read(self, job: str, request: wire.LogsRequest) -> bytes:
        """A view as JSON, which takes as long as the reading: the reader does both. What is before a line does not
        change, so a tail never waits."""
        deadline = time.monotonic() + request.wait_s * random.uniform(0.75, 1.0)
        while True:
            page = partial(self._read, job, request)
            view, encoded = await asyncio.get_running_loop().run_in_executor(self._reading, page)
            left_s = deadline - time.monotonic()
            if view.lines or not view.is_end or left_s <= 0 or request.tail:
                return encoded
            request = replace(request, cursor=view.next)
            await self._news.wait(left_s, job)

    async def drop(self, job: str) -> int:
        """All of a job; returns how many lines that were."""
        drop = partial(self._store.drop, job)
        return await asyncio.get_running_loop().run_in_executor(self._writing, drop)

    # --- in threads ---

    def _keep(
        self, roster: Roster, agent: str, message: wire.LogChunks, bounds: LogBounds
    ) -> dict[str, WriterPosition]:
        lines = [_new_lines(each, roster, agent) for each in message.chunks]
        return self._store.keep(roster.job, lines, message.asks, bounds)

    def _tidy(self, job: str, bounds: LogBounds) -> None:
        _carefully(partial(self._store.tidy, job, bounds))

    def _read(self, job: str, request: wire.LogsRequest) -> tuple[wire.LogsView, bytes]:
        try:
            check_query(log_query(request))
        except UsageError as error:
            raise Refused(error.message, status=422, hint=error.hint, code=error.code) from None
        search = self._regex().searching(request.regex) if request.regex else None
        view = self._reader.read(job, request, search=search)
        return view, wire.to_json(view)

    def _regex(self) -> RegexProcess:
        """The one of this thread."""
        if not hasattr(self._own, "regex"):
            self._own.regex = RegexProcess()
            self._regexes.append(self._own.regex)
        found: RegexProcess = self._own.regex
        return found

    async def _sweep(self) -> None:
        while True:
            self._writing.submit(_carefully, lambda: self._store.drop_expired(time.time()))
            await asyncio.sleep(SWEEP_S)


def _num_lines(chunk: wire.LogChunk) -> int:
    """Of a chunk that was kept, or had been before."""
    return log_chunk.num_lines(base64.b64decode(chunk.data[:32]))


def _carefully(act: Callable[[], None]) -> None:
    """What tidies up is tried again later: an error is worth a line."""
    try:
        act()
    except (StoreError, StoreTaken, ValueError) as error:
        log.error("%s", error)


def _new_lines(chunk: wire.LogChunk, roster: Roster, agent: str) -> NewLines:
    try:
        data = base64.b64decode(chunk.data, validate=True)
        unpacked = log_chunk.unpack(data)
        log_chunk.check(unpacked)
    except (ValueError, binascii.Error) as error:
        raise Refused(f"{chunk.worker}: {error}", status=422, code="log-chunk-invalid") from None
    worker = roster.workers.get(chunk.worker)
    return NewLines(
        worker=chunk.worker,
        node=worker.agent if worker is not None else agent,
        rank=roster.generation.ranks.get(chunk.worker, chunk.rank),
        first_line=chunk.first_line,
        stdout=chunk.stdout,
        stderr=chunk.stderr,
        dropped_lines=chunk.dropped_lines,
        dropped_bytes=chunk.dropped_bytes,
        chunk=unpacked,
        data=data,
    )
