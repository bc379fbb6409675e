"""Jobs that are over leave the memory after some minutes, and the store after some days: series, lines, roster.

A job that has left the memory is read from the store again when a call asks for it. Each removal from the store is
counted and logged. Metrics and lines go first, the job last: an interrupted removal is found again and finished."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from everstep.coordinator.job_logs import JobLogs
from everstep.coordinator.metrics import Metrics
from everstep.coordinator.store.store import Store
from everstep.storage.database import StoreError

log = logging.getLogger(__name__)

DAYS = 90.0
SWEEP_S = 600.0  # between two looks; a job leaves the memory between one and two of them after its end
_DAY_S = 86_400.0
_MOST_NAMED = 10
_MOST_AT_ONCE = 100  # the rest waits for the next look


class JobRetention:
    """`forget`: out of the memory, those that were over at the last look. `drop`: this one, also if calls read it.
    `remove`: also from the store, for good."""

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        logs: JobLogs,
        *,
        forget: Callable[[], Awaitable[None]],
        drop: Callable[[str], Awaitable[None]],
        remove: Callable[[str], Awaitable[None]],
        days: float = DAYS,
    ) -> None:
        self._store, self._metrics, self._logs = store, metrics, logs
        self._forget, self._drop, self._days = forget, drop, days
        self._remove = remove
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def remove(self, job: str) -> tuple[int, int]:
        """For good, with all that it had. Returns how many series and lines that were."""
        await self._drop(job)
        removed = await self._metrics.drop(job), await self._logs.drop(job)
        await self._remove(job)
        return removed

    async def sweep(self, now: float) -> list[str]:
        """Returns the jobs that were removed from the store."""
        await self._forget()
        before = now - self._days * _DAY_S
        old = await self._store.in_thread(lambda: self._store.jobs_ended(now, before, _MOST_AT_ONCE))
        num_series = num_lines = 0
        for job in old:
            series, lines = await self.remove(job)
            num_series, num_lines = num_series + series, num_lines + lines
        if old:
            named = ", ".join(old[:_MOST_NAMED]) + (", …" if len(old) > _MOST_NAMED else "")
            removed = "removed %d jobs that ended more than %g days ago, with %d series and %d lines: %s"
            log.warning(removed, len(old), self._days, num_series, num_lines, named)
        return old

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await self.sweep(time.time())
            except StoreError as error:
                log.error("could not remove old jobs; will retry: %s", error)
            except Exception:  # a full store is not worth the jobs that run
                log.exception("could not remove old jobs; will retry")
