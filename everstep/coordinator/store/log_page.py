"""One page of a log: the lines after a cursor that are wanted, in the order of arrival.

A search that has used up its time returns what it has found so far and a cursor: the first lines found are seen at
once, however long the log is. Blocks are opened one at a time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, and_, func, select

from everstep.coordinator.store.log_tables import LOG_BLOCKS, LOG_DROPS, LOG_WRITERS
from everstep.errors import Refused
from everstep.record.log_chunk import Chunk, unpack
from everstep.record.log_search import LogPart, LogQuery, Search, find, log_query, part_at
from everstep.wire import LoggedLine, LogsRequest, LogsView
from everstep.wire.bounds import MAX_INT

MAX_REPLY_BYTES = 1 << 20
MAX_BLOCKS_AWAY = 1_000  # context is looked for so far from a line
FACTS_PER_QUERY = 512
LEAST_LINES = 50  # on a page, before time counts within a block: the first search may wait for a process to start
_MOST_OPEN = 16  # blocks that a call keeps: context is in those just read
_C = LOG_BLOCKS.c
_FACTS = (_C.number, _C.first_number, _C.workers)


@dataclass(frozen=True, order=True)
class Cursor:
    """The next line to look at: its part's number, and its index there."""

    number: int = 0
    line: int = 0

    @classmethod
    def parse(cls, text: str) -> Cursor:
        number, _, line = text.partition(".")
        if not text:
            return cls()
        is_number = number.isascii() and number.isdigit() and line.isascii() and line.isdigit() and len(text) < 40
        if not is_number or max(int(number), int(line)) > MAX_INT:  # more than a database can compare
            hint = "pass `next` of an earlier reply, or nothing to start at the beginning"
            raise Refused(f"not a cursor: {text[:40]!r}", status=422, hint=hint, code="log-cursor-invalid")
        return cls(int(number), int(line))

    def __str__(self) -> str:
        return f"{self.number}.{self.line}"


@dataclass(frozen=True)
class Block:
    number: int
    first_number: int
    parts: tuple[LogPart, ...]
    chunk: Chunk

    def record(self, index: int, nodes: Mapping[str, str], *, is_context: bool = False) -> LoggedLine:
        part, at = part_at(self.parts, index)
        line = self.chunk.line(index)
        return LoggedLine(
            worker=part.worker,
            node=nodes.get(part.worker, ""),
            rank=part.rank,
            line=part.first_line + at,
            time=line.time,
            level=line.level,
            stream=line.stream,
            text=line.text,
            is_context=is_context,
        )

    def first_from(self, cursor: Cursor) -> int:
        """The index of the first line at the cursor or after it."""
        index = 0
        for part in self.parts:
            if part.number > cursor.number:
                break
            index += min(cursor.line, part.num_lines) if part.number == cursor.number else part.num_lines
        return index

    def lines_of(self, worker: str, first: int, last: int) -> dict[int, int]:
        """Numbers of the worker's lines in this range, and their indexes here."""
        found, start = dict[int, int](), 0
        for part in self.parts:
            if part.worker == worker:
                low, high = max(first, part.first_line), min(last, part.first_line + part.num_lines - 1)
                found |= {line: start + line - part.first_line for line in range(low, high + 1)}
            start += part.num_lines
        return found


class LogPage:
    """One call."""

    def __init__(
        self,
        connection: Connection,
        job: str,
        request: LogsRequest,
        search: Search | None,
    ) -> None:
        query = log_query(request)
        self._connection, self._job = connection, job
        self._limit, self._context, self._search = request.limit, request.context, search
        self._nodes = _nodes(connection, job)
        self._query = _only_on_node(query, self._nodes) if query.node else query
        self._lines, self._num_bytes = list[LoggedLine](), 0
        self._opened: dict[int, Block] = {}  # the last ones
        self._shown: dict[str, int] = {}  # the last line of each worker on this page

    def fill(self, cursor: Cursor, deadline: float) -> LogsView:
        is_end = False
        while not is_end:
            cursor, is_end, is_full = self._scan(cursor, deadline)
            if is_full:
                break
        return LogsView(lines=self._lines, next=str(cursor), is_end=is_end, notes=self._notes())

    def _scan(self, cursor: Cursor, deadline: float) -> tuple[Cursor, bool, bool]:
        """Where it stopped, whether that is the end, and whether the page is full. Neither: blocks have changed."""
        last = self._last_number()
        for number in self._candidates(cursor.number):
            block = self._open(number)
            if block is None:  # packed with others meanwhile
                return cursor, False, False
            cursor, is_full = self._take(block, cursor, deadline)
            if is_full or time.monotonic() > deadline:
                return cursor, False, True
        return max(cursor, Cursor(last + 1)), True, False

    def _candidates(self, number: int) -> Iterator[int]:
        """Numbers of blocks from this one on that may hold a wanted line."""
        while True:
            rows = self._facts(_C.number >= number, _C.number)
            yield from self._promising(rows)
            if len(rows) < FACTS_PER_QUERY:
                return
            number = rows[-1].number + 1

    def _facts(self, where: Any, order: Any) -> Sequence[Any]:
        """What is known of blocks without opening them; at most `FACTS_PER_QUERY`."""
        query, wanted = self._query, [_C.job == self._job, where]
        if query.since is not None:
            wanted.append(_C.last_time >= query.since)
        if query.until is not None:
            wanted.append(_C.first_time < query.until)
        if query.level:
            wanted.append(_C.top_level >= query.level)
        columns = (*_FACTS, _C.first_time, _C.last_time, _C.top_level, *([_C.filter] if query.bits else []))
        found = select(*columns).where(and_(*wanted)).order_by(order).limit(FACTS_PER_QUERY)
        return self._connection.execute(found).all()

    def _promising(self, rows: Sequence[Any]) -> Iterator[int]:
        for row in rows:
            may_match = self._query.may_match(
                first_time=row.first_time,
                last_time=row.last_time,
                top_level=row.top_level,
                chunk_filter=row.filter if self._query.bits else None,
            )
            if may_match and self._has_worker(row.workers):
                yield row.number

    def _has_worker(self, workers: str) -> bool:
        wanted = self._query.workers
        return wanted is None or any(f" {worker} " in workers for worker in wanted)

    def _is_late(self, deadline: float) -> bool:
        return len(self._lines) >= LEAST_LINES and time.monotonic() > deadline

    def _take(self, block: Block, cursor: Cursor, deadline: float) -> tuple[Cursor, bool]:
        """Add what is wanted of a block. Where to continue, and whether the page is full."""
        first = block.first_from(cursor)
        for index in find(block.chunk, block.parts, self._query, self._search):
            if index < first:
                continue
            if self._is_full(self._limit) or self._is_late(deadline):
                return self._before(block, index), True
            self._add(block, index)
        return Cursor(block.number + 1), False

    def _is_full(self, limit: int) -> bool:
        return len(self._lines) >= limit or self._num_bytes >= MAX_REPLY_BYTES

    def _before(self, block: Block, index: int) -> Cursor:
        part, at = part_at(block.parts, index)
        return Cursor(part.number, at)

    def _add(self, block: Block, index: int) -> None:
        part, at = part_at(block.parts, index)
        if not self._context:
            self._append(block.record(index, self._nodes))
            return
        line = part.first_line + at
        shown = self._shown.get(part.worker, -1)
        if line <= shown:  # as context of an earlier one: now it is found itself
            self._mark_found(part.worker, line)
        first, last = max(shown + 1, line - self._context, 0), line + self._context
        around = self._around(block, part.worker, first, last) if first <= last else {}
        for number in sorted(around):
            place, there = around[number]
            self._append(place.record(there, self._nodes, is_context=number != line))
        self._shown[part.worker] = max(shown, max(around, default=shown))

    def _append(self, record: LoggedLine) -> None:
        self._lines.append(record)
        self._num_bytes += len(record.text) + 100

    def _mark_found(self, worker: str, line: int) -> None:
        for place in range(len(self._lines) - 1, -1, -1):
            each = self._lines[place]
            if each.worker == worker and each.line == line:
                self._lines[place] = replace(each, is_context=False)
                return

    def _around(self, block: Block, worker: str, first: int, last: int) -> dict[int, tuple[Block, int]]:
        """Lines of a worker by number, in this block and its neighbors."""
        found = {line: (block, index) for line, index in block.lines_of(worker, first, last).items()}
        before, after = _C.number < block.first_number, _C.number > block.number
        for where, order, limit in ((before, _C.number.desc(), first), (after, _C.number, last)):
            if limit in found:
                continue
            for number, first_number in self._with_worker(worker, where, order):
                neighbor = self._opened.get(number)
                if neighbor is None or neighbor.first_number != first_number:  # not known, or packed meanwhile
                    neighbor = self._open(number)
                if neighbor is None:
                    break
                more = neighbor.lines_of(worker, first, last)
                found |= {line: (neighbor, index) for line, index in more.items()}
                if limit in found or not more:
                    break
        return found

    def _with_worker(self, worker: str, where: Any, order: Any) -> Iterator[tuple[int, int]]:
        query = select(*_FACTS).where(_C.job == self._job, where).order_by(order).limit(MAX_BLOCKS_AWAY)
        for row in self._connection.execute(query).all():
            if f" {worker} " in row.workers:
                yield row.number, row.first_number

    def _open(self, number: int) -> Block | None:
        query = select(_C.first_number, _C.parts, _C.data).where(_C.job == self._job, _C.number == number)
        row = self._connection.execute(query).one_or_none()
        if row is None:
            return None
        parts = tuple(_part(each) for each in json.loads(row.parts))
        if len(self._opened) >= _MOST_OPEN:
            del self._opened[next(iter(self._opened))]
        block = self._opened[number] = Block(number, row.first_number, parts, unpack(row.data))
        return block

    def _last_number(self) -> int:
        return self._connection.scalar(select(func.max(_C.number)).where(_C.job == self._job)) or -1

    def _notes(self) -> list[str]:
        row = self._connection.execute(select(LOG_DROPS).where(LOG_DROPS.c.job == self._job)).one_or_none()
        return drop_notes(row) if row is not None else []


def drop_notes(row: Any) -> list[str]:
    """What is missing, in words."""
    notes = []
    if row.old_lines:
        lines = f"{row.old_lines:,} lines ({row.old_bytes / 1e6:.1f} MB)"
        notes.append(f"the oldest {lines} were dropped: beyond log_mb or log_days")
    if row.node_lines or row.node_bytes:
        lines = f"{row.node_lines:,} lines ({row.node_bytes / 1e6:.1f} MB)"
        notes.append(f"{lines} were dropped on their nodes before they could be sent: beyond node_log_mb")
    return notes


def _nodes(connection: Connection, job: str) -> dict[str, str]:
    rows = connection.execute(select(LOG_WRITERS.c.worker, LOG_WRITERS.c.node).where(LOG_WRITERS.c.job == job))
    return {row.worker: row.node for row in rows}


def _only_on_node(query: LogQuery, nodes: Mapping[str, str]) -> LogQuery:
    there = frozenset(worker for worker, node in nodes.items() if node == query.node)
    workers = there if query.workers is None else there & query.workers
    return replace(query, workers=workers)


def _part(row: Sequence[Any]) -> LogPart:
    number, worker, rank, first_line, num_lines = row
    return LogPart(number=number, worker=worker, rank=rank, first_line=first_line, num_lines=num_lines)
