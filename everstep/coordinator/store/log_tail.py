"""The last wanted lines of a log, or those before a cursor: read from the end, so that a long log costs no more than a
short one.

A search that has used up its time returns what it has found so far; `previous` says where to continue, so that nothing
is skipped."""

from __future__ import annotations

import time
from collections.abc import Iterator

from sqlalchemy import Connection

from everstep.coordinator.store.log_page import FACTS_PER_QUERY, Block, Cursor, LogPage
from everstep.coordinator.store.log_tables import LOG_BLOCKS
from everstep.record.log_search import Search, find, part_at
from everstep.wire import MAX_LINES, LogsRequest, LogsView

_C = LOG_BLOCKS.c


class LogTail(LogPage):
    """One call. Lines are gathered from the last one to the first."""

    def __init__(self, connection: Connection, job: str, request: LogsRequest, search: Search | None) -> None:
        super().__init__(connection, job, request, search)
        self._tail, self._num_found = request.tail, 0
        self._first_shown: dict[str, int] = {}  # the first line of each worker on this page

    def fill_back(self, before: Cursor | None, deadline: float) -> LogsView:
        """`before`: None for the end of the log."""
        end = before or Cursor(self._last_number() + 1)
        at: Cursor | None = end
        is_done = False
        while at is not None and not is_done:
            at, is_done = self._scan_back(at, deadline)
        return LogsView(
            lines=self._lines[::-1],
            next=str(end),
            is_end=before is None,
            notes=self._notes(),
            previous="" if at is None else str(at),
        )

    def _scan_back(self, before: Cursor, deadline: float) -> tuple[Cursor | None, bool]:
        """Where it stopped (None: at the beginning), and whether that is all for now. Not so: blocks have changed."""
        for number in self._candidates_back(before):
            block = self._open(number)
            if block is None:  # packed with others meanwhile, or dropped
                return before, False
            before, is_full = self._take_back(block, before, deadline)
            if is_full or time.monotonic() > deadline:
                return before, True
        return None, True

    def _candidates_back(self, before: Cursor) -> Iterator[int]:
        """Numbers of blocks with lines before the cursor that may hold a wanted one, the last one first."""
        where = _C.first_number <= before.number if before.line else _C.first_number < before.number
        while True:
            rows = self._facts(where, _C.number.desc())
            yield from self._promising(rows)
            if len(rows) < FACTS_PER_QUERY:
                return
            where = _C.number < rows[-1].number

    def _take_back(self, block: Block, before: Cursor, deadline: float) -> tuple[Cursor, bool]:
        """Add what is wanted of a block. Before which line to continue, and whether the page is full."""
        end = block.first_from(before)
        at = before
        for index in reversed(find(block.chunk, block.parts, self._query, self._search)):
            if index >= end:
                continue
            if self._num_found >= self._tail or self._is_full(MAX_LINES) or self._is_late(deadline):
                return at, True
            self._add_back(block, index)
            at = self._before(block, index)
        return Cursor(block.first_number), False

    def _add_back(self, block: Block, index: int) -> None:
        self._num_found += 1
        if not self._context:
            self._append(block.record(index, self._nodes))
            return
        part, at = part_at(block.parts, index)
        line = part.first_line + at
        shown = self._first_shown.get(part.worker, line + self._context + 1)
        if line >= shown:  # as context of a later one: now it is found itself
            self._mark_found(part.worker, line)
        first, last = max(line - self._context, 0), min(shown - 1, line + self._context)
        around = self._around(block, part.worker, first, last) if first <= last else {}
        for number in sorted(around, reverse=True):
            place, there = around[number]
            self._append(place.record(there, self._nodes, is_context=number != line))
        self._first_shown[part.worker] = min(shown, *around, line)
