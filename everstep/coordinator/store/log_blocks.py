"""Search what a job has printed since the last search, for several regular expressions at once. For any thread."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Engine, select
from sqlalchemy.exc import SQLAlchemyError

from everstep.coordinator.experiments.log_policies import MOST_LINE, MatchedLine
from everstep.coordinator.store.log_tables import LOG_BLOCKS, LOG_WRITERS
from everstep.errors import Refused
from everstep.record.log_chunk import unpack
from everstep.record.log_search import LogPart, LogQuery, Search, find
from everstep.storage.database import StoreError, words

_C = LOG_BLOCKS.c
_BLOCKS_AT_ONCE = 8  # of up to 256 KiB each


@dataclass(slots=True)
class Searched:
    number: int  # all parts up to this one were searched
    is_end: bool = True
    lines: list[MatchedLine] = field(default_factory=list)  # the first of each pattern and node
    problems: dict[str, str] = field(default_factory=dict)  # of patterns that cannot be searched for


def search_after(
    engine: Engine, job: str, number: int, patterns: Collection[str], searching: Callable[[str], Search]
) -> Searched:
    """Some blocks after the part with this number."""
    try:
        with engine.connect() as connection:
            return _search(connection, job, number, patterns, searching)
    except SQLAlchemyError as error:
        raise StoreError(f"the log cannot be read: {words(error)}", code="log-not-read") from None


def _search(
    connection: Connection, job: str, number: int, patterns: Collection[str], searching: Callable[[str], Search]
) -> Searched:
    columns = (_C.number, _C.parts, _C.filter, _C.top_level, _C.first_time, _C.last_time, _C.data)
    query = select(*columns).where(_C.job == job, _C.number > number).order_by(_C.number).limit(_BLOCKS_AT_ONCE)
    rows = connection.execute(query).all()
    nodes = {row.worker: row.node for row in connection.execute(select(LOG_WRITERS).where(LOG_WRITERS.c.job == job))}
    found = Searched(number, is_end=len(rows) < _BLOCKS_AT_ONCE)
    for row in rows:
        wanted = [each for each in patterns if each not in found.problems and _may_match(row, each)]
        _search_block(row, number, wanted, nodes, searching, found)
        found.number = max(found.number, row.number)
    return found


def _may_match(row: Any, pattern: str) -> bool:
    return LogQuery(regex=pattern).may_match(
        first_time=row.first_time, last_time=row.last_time, top_level=row.top_level, chunk_filter=row.filter
    )


def _search_block(
    row: Any,
    number: int,
    patterns: Collection[str],
    nodes: Mapping[str, str],
    searching: Callable[[str], Search],
    found: Searched,
) -> None:
    if not patterns:
        return
    parts = [LogPart(number=n, worker=w, rank=r, first_line=f, num_lines=k) for n, w, r, f, k in json.loads(row.parts)]
    first = sum(each.num_lines for each in parts if each.number <= number)  # of a block that was packed meanwhile
    workers = [each.worker for each in parts for _ in range(each.num_lines)]
    chunk = unpack(row.data)
    for pattern in patterns:
        try:
            indexes = find(chunk, parts, LogQuery(regex=pattern), searching(pattern))
        except Refused as error:
            found.problems[pattern] = f"{error.message}; it is no longer matched"
            continue
        known = {each.node for each in found.lines if each.pattern == pattern}
        for index in indexes:
            worker = workers[index]
            node = nodes.get(worker, "")
            if index >= first and node not in known:
                known.add(node)
                line = _printable(chunk.line(index).text[:MOST_LINE])
                found.lines.append(MatchedLine(pattern=pattern, node=node, line=line, worker=worker))


def _printable(text: str) -> str:
    """A script may print anything; not every database takes it."""
    return "".join(each if each.isprintable() else " " for each in text)
