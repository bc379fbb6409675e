"""Search what a job has printed since the last search, for several regular expressions at once. For any thread."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from sqlalchemy import Connection, Engine, select
from sqlalchemy.exc import SQLAlchemyError

from everstep.coordinator.experiments.log_policies import MatchedLine
from everstep.coordinator.store.log_tables import LOG_BLOCKS, LOG_WRITERS
from everstep.errors import Refused
from everstep.record.log_chunk import unpack
from everstep.record.log_search import LogPart, LogQuery, Search, find, part_at
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
    known: set[tuple[str, str]] = set()
    for row in rows:
        parts = [
            LogPart(number=n, worker=w, rank=r, first_line=f, num_lines=k) for n, w, r, f, k in json.loads(row.parts)
        ]
        first, chunk = sum(each.num_lines for each in parts if each.number <= number), None
        for pattern in patterns:
            wanted = LogQuery(regex=pattern)
            may_match = wanted.may_match(
                first_time=row.first_time, last_time=row.last_time, top_level=row.top_level, chunk_filter=row.filter
            )
            if not may_match or pattern in found.problems:
                continue
            chunk = chunk or unpack(row.data)
            try:
                indexes = find(chunk, parts, wanted, searching(pattern))
            except Refused as error:
                found.problems[pattern] = f"{error.message}; it is no longer matched"
                continue
            for index in indexes:
                worker = part_at(parts, index)[0].worker
                if index >= first and (pattern, nodes.get(worker, "")) not in known:
                    known.add((pattern, nodes.get(worker, "")))
                    text = chunk.line(index).text
                    found.lines.append(
                        MatchedLine(pattern=pattern, node=nodes.get(worker, ""), line=text, worker=worker)
                    )  # fmt: skip
        found.number = max(found.number, row.number)
    return found
