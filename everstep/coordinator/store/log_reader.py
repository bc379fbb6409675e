"""Read and search a log in pages, from a cursor on or from the end. For any thread, and for the files of jobs that are
over."""

from __future__ import annotations

import time
from pathlib import Path

from sqlalchemy import Engine, select
from sqlalchemy.exc import SQLAlchemyError

from everstep.coordinator.store.log_page import Cursor, LogPage
from everstep.coordinator.store.log_tables import LOG_WRITERS
from everstep.coordinator.store.log_tail import LogTail
from everstep.record.log_search import Search
from everstep.storage.database import StoreError, open_readonly, words
from everstep.wire import LogsRequest, LogsView

BUDGET_S = 0.25  # of one call


class LogReader:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @classmethod
    def of_file(cls, path: Path) -> LogReader:
        """The log of a job whose coordinator is gone."""
        return cls(open_readonly(path))

    def close(self) -> None:
        self._engine.dispose()

    def read(
        self, job: str, request: LogsRequest, *, search: Search | None = None, budget_s: float = BUDGET_S
    ) -> LogsView:
        """`search` applies the regular expression; None: here."""
        cursor = Cursor.parse(request.cursor) if request.cursor else None
        try:
            with self._engine.connect() as connection:
                deadline = time.monotonic() + budget_s
                if request.tail:
                    return LogTail(connection, job, request, search).fill_back(cursor, deadline)
                return LogPage(connection, job, request, search).fill(cursor or Cursor(), deadline)
        except SQLAlchemyError as error:
            raise StoreError(f"the log cannot be read: {words(error)}", code="log-not-read") from None

    def jobs(self) -> list[str]:
        with self._engine.connect() as connection:
            return list(connection.scalars(select(LOG_WRITERS.c.job).distinct()))
