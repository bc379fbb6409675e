"""Lines of job runs from the Logging Search service, as they arrive.

Records arrive late, out of order, and more than once. So each search begins some minutes before the last one did,
records are identified by id, and searches continue after the runs' end until each run's last line was seen, or a time
limit passes. A call answers with 1,000 records at most and looks back 14 days at most."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everstep.platforms.base import LogLine

PAUSE_S = 3.0
OVERLAP_S = 180.0
LATE_S = 90.0  # records of a run may arrive this long after its end
MAX_WINDOW_S = 14 * 86_400.0
MAX_RECORDS = 1000
_MAX_SOURCES = 20  # runs in one query
_TICK_S = 0.001  # of the service's clock
LAST_LINE = "everstep: end of this node's log"  # as `everstep entry` says it


class TooLarge(Exception):
    """The service found more than it can return."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogRecord:
    id: str
    at: float  # unix time
    source: str  # ends with the run's OCID
    text: str


@dataclass(frozen=True, slots=True)
class SearchWindow:
    start: float
    end: float


Search = Callable[[str, SearchWindow], Sequence[LogRecord]]  # a query, oldest first, MAX_RECORDS at most


def queries(place: str, runs: Sequence[str]) -> Iterator[str]:
    """`place`: compartment/log group/log, or the first two."""
    for first in range(0, len(runs), _MAX_SOURCES):
        sources = " or ".join(f"source = '*{run}'" for run in runs[first : first + _MAX_SOURCES])
        yield f'search "{place}" | where {sources} | sort by datetime asc'


def record_of(told: Mapping[str, Any]) -> LogRecord:
    """One result of the service."""
    content = told["logContent"]
    data = content.get("data", {})
    text = data.get("message", "") if isinstance(data, Mapping) else data
    return LogRecord(
        id=str(content["id"]),
        at=float(told["datetime"]) / 1000,
        source=str(content.get("source", "")),
        text=str(text).rstrip("\n"),
    )


def read_all(search: Search, query: str, window: SearchWindow) -> list[LogRecord]:
    """All records: continue from the last one of each answer, and halve windows that are too large."""
    found: dict[str, LogRecord] = {}
    start = window.start
    while start <= window.end:
        part = _read(search, query, SearchWindow(start, window.end))
        found.update((record.id, record) for record in part)
        if len(part) < MAX_RECORDS:
            break
        last = part[-1].at
        start = (
            last if last > start else start + _TICK_S
        )  # more than MAX_RECORDS at one instant: the rest cannot be requested
    return sorted(found.values(), key=lambda record: record.at)


def _read(search: Search, query: str, window: SearchWindow) -> list[LogRecord]:
    try:
        return list(search(query, window))
    except TooLarge:
        if window.end - window.start < 2 * _TICK_S:
            raise
        middle = (window.start + window.end) / 2
        first = read_all(search, query, SearchWindow(window.start, middle))
        return [*first, *read_all(search, query, SearchWindow(middle + _TICK_S, window.end))]


@dataclass(frozen=True, kw_only=True, slots=True)
class FollowedRuns:
    """The runs to follow at this moment; there may be more at the next look."""

    names: Mapping[str, str]  # by the runs' OCIDs
    is_over: bool
    nodes_per_run: int = 1  # each prints a last line


def follow(
    search: Search,
    place: str,
    look: Callable[[], FollowedRuns],
    *,
    since: float,
    follows: bool,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.time,
) -> Iterator[LogLine]:
    seen: dict[str, float] = {}
    ends: Counter[str] = Counter()
    over_at: float | None = None
    start = since - OVERLAP_S
    while True:
        watched, now = look(), clock()
        over_at = now if watched.is_over and over_at is None else over_at
        runs = tuple(watched.names)
        window = SearchWindow(max(start, now - MAX_WINDOW_S), now)
        for record in (record for query in queries(place, runs) for record in read_all(search, query, window)):
            if record.id in seen:
                continue
            seen[record.id] = record.at
            run = next(run for run in runs if record.source.endswith(run))
            if record.text == LAST_LINE:
                ends[run] += 1
            else:
                yield LogLine(node=watched.names[run], text=record.text)
        missing = {run for run in runs if ends[run] < watched.nodes_per_run}
        if is_enough(follows=follows, over_for_s=None if over_at is None else now - over_at, missing=missing):
            return
        start = now - OVERLAP_S
        seen = {record: at for record, at in seen.items() if at >= start - OVERLAP_S}
        sleep(PAUSE_S)


def is_enough(*, follows: bool, over_for_s: float | None, missing: set[str]) -> bool:
    if not follows:
        return True
    return over_for_s is not None and (not missing or over_for_s > LATE_S)
