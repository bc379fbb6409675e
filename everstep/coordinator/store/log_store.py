"""Keep what jobs print: chunks as agents send them, packed together later, within the job's bounds.

A database file of its own on SQLite, the same database with connections of its own on PostgreSQL: no heartbeat or lease
waits for a log. Exactly once: a chunk is kept only if it begins where the worker's kept lines end. Written by one
thread of the coordinator whose epoch this is; read by any (`log_reader`). A line is as old as its arrival here: clocks
of nodes may be wrong. Knows nothing of HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update
from sqlalchemy.exc import SQLAlchemyError

from everstep.coordinator.store.log_tables import LOG_BLOCKS, LOG_DROPS, LOG_OWNER, LOG_TABLES, LOG_WRITERS
from everstep.errors import UsageError
from everstep.record import log_chunk
from everstep.record.log_chunk import MAX_CHUNK_BYTES, Chunk
from everstep.record.log_place import log_path
from everstep.record.log_trigrams import build_filter
from everstep.storage.database import StoreError, StoreTaken, open_engine, sqlite_path, words

MAX_SMALL = 128  # blocks that wait to be packed together, and are searched without a filter
DAY_S = 86_400.0
_BLOCKS_AT_ONCE = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class NewLines:
    """A chunk to be kept."""

    worker: str
    node: str
    rank: int
    first_line: int
    stdout: int
    stderr: int
    dropped_lines: int
    dropped_bytes: int
    chunk: Chunk
    data: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class LogBounds:
    max_bytes: int
    days: float


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterPosition:
    next_line: int = 0
    stdout: int = 0
    stderr: int = 0


@dataclass
class _JobTotals:
    """What the table says of a job, in memory for the one thread that writes it."""

    last_number: int = 0
    num_bytes: int = 0
    small: list[tuple[int, int]] = field(default_factory=list)  # number and bytes of blocks to be packed together


def logs_url(store_url: str) -> str:
    """Where the log of a store is."""
    path = sqlite_path(store_url)
    if path is None:
        return store_url
    return f"sqlite:///{log_path(Path(path))}" if path else "sqlite://"


class LogStore:
    """Written by one thread at a time. `store_url`, `epoch`: of the coordinator's store."""

    def __init__(self, store_url: str, epoch: int) -> None:
        self._epoch = epoch
        self._totals: dict[str, _JobTotals] = {}
        try:
            # A machine that loses its power may lose the last lines; agents still have them and send them again.
            self.engine = open_engine(logs_url(store_url), num_connections=4, synchronous="NORMAL")
            LOG_TABLES.create_all(self.engine)
            with self.engine.begin() as connection:
                _take(connection, epoch)
        except SQLAlchemyError as error:
            raise UsageError(f"cannot open the log's store: {words(error)}", code="log-store-not-opened") from None

    def close(self) -> None:
        self.engine.dispose()

    def keep(
        self, job: str, lines: Sequence[NewLines], asks: Sequence[str], bounds: LogBounds
    ) -> dict[str, WriterPosition]:
        """Keep what continues the kept lines of its worker; ignore all else. Returns the positions of all workers
        that occur."""
        now = time.time()
        with self._writing() as connection:
            positions = self._positions(connection, job, {each.worker for each in lines} | set(asks))
            totals = self._totals.get(job) or _load_totals(connection, job)
            kept, number = list[NewLines](), totals.last_number
            small, rows = list(totals.small), list[dict[str, Any]]()
            for each in lines:
                at = positions[each.worker]
                if each.first_line - each.dropped_lines != at.next_line:
                    continue
                number += 1
                row = _block(job, [_part(number, each)], each.chunk, each.data, now + bounds.days * DAY_S)
                next_line = each.first_line + each.chunk.num_lines
                positions[each.worker] = WriterPosition(next_line=next_line, stdout=each.stdout, stderr=each.stderr)
                kept.append(each)
                rows.append(row)
                small.append((number, row["num_bytes"]))
            if rows:
                connection.execute(insert(LOG_BLOCKS), rows)
                _save_positions(connection, job, {each.worker: (each.node, positions[each.worker]) for each in kept})
                _count_node_drops(connection, job, kept)
        num_bytes = totals.num_bytes + sum(row["num_bytes"] for row in rows)
        self._totals[job] = _JobTotals(last_number=number, num_bytes=num_bytes, small=small)  # once it is durable
        return positions

    def tidy(self, job: str, bounds: LogBounds, *, is_all: bool = False) -> None:
        """Pack small blocks together, and drop the oldest beyond the bound. `is_all`: the few that wait, too."""
        totals = self._totals.get(job)
        if totals is None:
            return
        waiting = sum(num_bytes for _, num_bytes in totals.small)
        if waiting >= MAX_CHUNK_BYTES or len(totals.small) >= MAX_SMALL or (is_all and totals.small):
            self._pack(job, totals)
        if totals.num_bytes > bounds.max_bytes:
            self._drop_oldest(job, totals, bounds)

    def drop_expired(self, now: float) -> None:
        """Of all jobs."""
        is_old = LOG_BLOCKS.c.expires_at < now
        counted = (LOG_BLOCKS.c.job, func.sum(LOG_BLOCKS.c.num_lines), func.sum(LOG_BLOCKS.c.num_bytes))
        with self._writing() as connection:
            gone = connection.execute(select(*counted).where(is_old).group_by(LOG_BLOCKS.c.job)).all()
            connection.execute(delete(LOG_BLOCKS).where(is_old))
            for job, num_lines, num_bytes in gone:
                _add_drops(connection, job, old_lines=num_lines, old_bytes=num_bytes)
        for job, _, _ in gone:
            self._totals.pop(job, None)  # to be read again

    def drop(self, job: str) -> int:
        """Remove all of a job, some blocks at a time. Returns how many lines that were."""
        self._totals.pop(job, None)
        ours, num_lines = LOG_BLOCKS.c.job == job, 0
        first = select(LOG_BLOCKS.c.number, LOG_BLOCKS.c.num_lines).where(ours).order_by(LOG_BLOCKS.c.number)
        while True:
            with self._writing() as connection:
                found = connection.execute(first.limit(_BLOCKS_AT_ONCE)).all()
                if not found:
                    for table in (LOG_WRITERS, LOG_DROPS):
                        connection.execute(delete(table).where(table.c.job == job))
                    return num_lines
                connection.execute(delete(LOG_BLOCKS).where(ours, LOG_BLOCKS.c.number <= found[-1].number))
            num_lines += sum(row.num_lines for row in found)

    # --- packing and bounds ---

    def _pack(self, job: str, totals: _JobTotals) -> None:
        for group in _groups(totals.small):
            with self._writing() as connection:
                ours = (LOG_BLOCKS.c.job == job, LOG_BLOCKS.c.number.between(group[0], group[-1]))
                found = connection.execute(select(LOG_BLOCKS).where(*ours).order_by(LOG_BLOCKS.c.number)).mappings()
                rows = list(found)
                if not rows:
                    continue
                chunk = log_chunk.join(log_chunk.unpack(row["data"]) for row in rows)
                parts = [part for row in rows for part in json.loads(row["parts"])]
                data = chunk.pack() if len(rows) > 1 else rows[0]["data"]
                packed = _block(job, parts, chunk, data, max(row["expires_at"] for row in rows))
                packed["filter"] = build_filter(chunk.text)
                connection.execute(delete(LOG_BLOCKS).where(*ours))
                connection.execute(insert(LOG_BLOCKS), [packed])
        totals.small.clear()

    def _drop_oldest(self, job: str, totals: _JobTotals, bounds: LogBounds) -> None:
        ours, number = LOG_BLOCKS.c.job == job, LOG_BLOCKS.c.number
        facts = select(number, LOG_BLOCKS.c.num_bytes, LOG_BLOCKS.c.num_lines).where(ours).order_by(number)
        with self._writing() as connection:
            num_bytes = num_lines = last = 0
            for row in connection.execute(facts):
                if totals.num_bytes - num_bytes <= bounds.max_bytes:
                    break
                last, num_bytes, num_lines = row.number, num_bytes + row.num_bytes, num_lines + row.num_lines
            connection.execute(delete(LOG_BLOCKS).where(ours, number <= last))
            _add_drops(connection, job, old_lines=num_lines, old_bytes=num_bytes)
        totals.num_bytes -= num_bytes
        totals.small = [each for each in totals.small if each[0] > last]

    def _positions(self, connection: Connection, job: str, workers: set[str]) -> dict[str, WriterPosition]:
        columns = (LOG_WRITERS.c.worker, LOG_WRITERS.c.next_line, LOG_WRITERS.c.stdout, LOG_WRITERS.c.stderr)
        query = select(*columns).where(LOG_WRITERS.c.job == job, LOG_WRITERS.c.worker.in_(sorted(workers)))
        found = {
            worker: WriterPosition(next_line=next_line, stdout=stdout, stderr=stderr)
            for worker, next_line, stdout, stderr in connection.execute(query)
        }
        return {worker: found.get(worker, WriterPosition()) for worker in workers}

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        try:
            with self.engine.begin() as connection:
                _lock(connection)
                if connection.scalar(select(LOG_OWNER.c.epoch).with_for_update()) != self._epoch:
                    raise _taken()
                yield connection
        except Exception as error:
            self._totals.clear()  # a commit that failed may have taken place: read them again
            if not isinstance(error, SQLAlchemyError | OverflowError):
                raise
            raise StoreError(f"the log's store did not keep a change: {words(error)}", code="log-not-kept") from None


def _take(connection: Connection, epoch: int) -> None:
    """The log is ours from now on, unless a later coordinator has it."""
    _lock(connection)
    found = connection.scalar(select(LOG_OWNER.c.epoch).with_for_update())
    if found is None:
        connection.execute(insert(LOG_OWNER).values(epoch=epoch))
    elif found > epoch:
        raise _taken()
    else:
        connection.execute(update(LOG_OWNER).values(epoch=epoch))


def _lock(connection: Connection) -> None:
    """Where a statement alone locks nothing: whose log it is must be true until the commit."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _taken() -> StoreTaken:
    return StoreTaken(
        "another coordinator has taken the log",
        hint="run only one coordinator per store; if you deleted the store's file, delete its -logs file too",
        code="log-taken",
    )


def _load_totals(connection: Connection, job: str) -> _JobTotals:
    ours, number, num_bytes = LOG_BLOCKS.c.job == job, LOG_BLOCKS.c.number, LOG_BLOCKS.c.num_bytes
    last, total = connection.execute(select(func.max(number), func.sum(num_bytes)).where(ours)).one()
    small = select(number, num_bytes).where(ours, LOG_BLOCKS.c.filter.is_(None)).order_by(number)
    waiting = [(row.number, row.num_bytes) for row in connection.execute(small)]
    # Numbers only ever grow, also after all blocks were dropped: readers compare them.
    first = 0 if last is not None else time.time_ns() // 1000
    return _JobTotals(last_number=int(last or first), num_bytes=int(total or 0), small=waiting)


def _groups(small: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """Numbers of blocks that fit into one."""
    group, num_bytes = list[int](), 0
    for number, size in small:
        if group and num_bytes + size > MAX_CHUNK_BYTES:
            yield group
            group, num_bytes = [], 0
        group.append(number)
        num_bytes += size
    if group:
        yield group


def _part(number: int, lines: NewLines) -> list[Any]:
    """As `record.log_search.LogPart` has it."""
    return [number, lines.worker, lines.rank, lines.first_line, lines.chunk.num_lines]


def _block(job: str, parts: Sequence[Any], chunk: Chunk, data: bytes, expires_at: float) -> dict[str, Any]:
    times = chunk.times
    return {
        "job": job,
        "number": parts[-1][0],
        "first_number": parts[0][0],
        "num_lines": chunk.num_lines,
        "num_bytes": len(chunk.text),
        "top_level": max(level & 0x7F for level in chunk.levels),
        "first_time": min(times) / 1000,
        "last_time": max(times) / 1000,
        "expires_at": expires_at,
        "workers": f" {' '.join(sorted({part[1] for part in parts}))} ",
        "filter": None,
        "parts": json.dumps(parts, separators=(",", ":")),
        "data": data,
    }


def _save_positions(connection: Connection, job: str, positions: Mapping[str, tuple[str, WriterPosition]]) -> None:
    names = LOG_WRITERS.c.job == job, LOG_WRITERS.c.worker.in_(sorted(positions))
    connection.execute(delete(LOG_WRITERS).where(*names))
    rows = [
        {"job": job, "worker": name, "node": node, "next_line": at.next_line, "stdout": at.stdout, "stderr": at.stderr}
        for name, (node, at) in positions.items()
    ]
    connection.execute(insert(LOG_WRITERS), rows)


def _count_node_drops(connection: Connection, job: str, lines: Sequence[NewLines]) -> None:
    num_lines, num_bytes = sum(each.dropped_lines for each in lines), sum(each.dropped_bytes for each in lines)
    if num_lines or num_bytes:
        _add_drops(connection, job, node_lines=num_lines, node_bytes=num_bytes)


def _add_drops(connection: Connection, job: str, **added: int) -> None:
    if not any(added.values()):
        return
    ours = LOG_DROPS.c.job == job
    more = {name: LOG_DROPS.c[name] + value for name, value in added.items()}
    if connection.execute(update(LOG_DROPS).where(ours).values(more)).rowcount == 0:
        row: dict[str, Any] = {"job": job, "old_lines": 0, "old_bytes": 0, "node_lines": 0, "node_bytes": 0}
        connection.execute(insert(LOG_DROPS), [{**row, **added}])
