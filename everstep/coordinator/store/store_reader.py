"""What people look at, read from the roster's store by a thread and a connection of their own.

However long a list or a band of workers takes to read, the store's own thread keeps what workers do: no heartbeat
or lease waits. A reader sees all that was kept before it asked. A database in memory has only one connection: there
the store's own thread reads as well. Opened with the first use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sqlalchemy import Connection, Engine

from everstep.coordinator.roster.facts import Generation
from everstep.coordinator.store.mark_rows import load_marks, load_summaries
from everstep.coordinator.store.store import Store, load_generation, reading
from everstep.coordinator.vital_tasks import die
from everstep.storage.database import StoreTaken, open_engine, sqlite_path
from everstep.wire import JobSummary, Mark

T = TypeVar("T")


class StoreReader:
    def __init__(self, store: Store) -> None:
        self._store, self._is_shared = store, sqlite_path(store.url) == ""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store-reader")
        self._engine: Engine | None = None

    async def marks(self, job: str, after: int, limit: int) -> list[Mark]:
        return await self.read(lambda connection: load_marks(connection, job, after, limit))

    async def summaries(self) -> list[JobSummary]:
        """Of all jobs, as they were kept last."""
        return await self.read(load_summaries)

    async def generation(self, job: str, number: int) -> Generation | None:
        return await self.read(lambda connection: load_generation(connection, job, number))

    async def read(self, query: Callable[[Connection], T]) -> T:
        """In one transaction."""
        if self._is_shared:
            return await self._store.in_thread(lambda: self._store.read(query))

        def read() -> T:
            if self._engine is None:
                self._engine = open_engine(self._store.url)
            with reading(self._engine, self._store.epoch) as connection:
                return query(connection)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, read)
        except StoreTaken as error:
            die("the coordinator stops", error)
            raise

    def close(self) -> None:
        """Before the store."""
        self._thread.shutdown()
        if self._engine is not None:
            self._engine.dispose()
