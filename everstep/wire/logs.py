"""Messages about a job's log: chunks that agents send, and lines that people read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from everstep.wire.bounds import MAX_INT, Bounds, Count, CountOrNone, Name

MAX_CHUNKS = 16  # in one call …
MAX_DATA = 480_000  # … and characters of each: 256 KiB that cannot be compressed, as base64
MAX_LINES = 5_000  # in one reply
MAX_CONTEXT = 100
MAX_SEARCH = 1_000  # characters of a text or regular expression to search for
MAX_WAIT_S = 10  # held, if there is nothing to tell

MaybeTime = Annotated[float, Bounds(ge=-1, le=MAX_INT)]  # seconds since the epoch; -1: none
SearchText = Annotated[str, Bounds(max_length=MAX_SEARCH)]


@dataclass(frozen=True, kw_only=True, slots=True)
class LogChunk:
    """Lines that one worker printed, after those kept before. Repeating it changes nothing."""

    worker: Name  # AGENT/INCARNATION for what the agent says itself
    first_line: Count  # its number among all lines of the worker
    stdout: Count  # bytes of the worker's files up to the end of these lines
    stderr: Count
    data: Annotated[str, Bounds(max_length=MAX_DATA)]  # base64 of a packed `record.log_chunk.Chunk`
    rank: CountOrNone = -1  # that the worker was started with
    dropped_lines: Count = 0  # just before these, too many for the node; `first_line` counts them
    dropped_bytes: Count = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class LogChunks:
    chunks: Annotated[list[LogChunk], Bounds(max_length=MAX_CHUNKS)] = field(default_factory=list)
    asks: Annotated[list[Name], Bounds(max_length=1_000)] = field(default_factory=list)  # whose positions to tell


@dataclass(frozen=True, kw_only=True, slots=True)
class LogPosition:
    """How much of a worker's output is kept: continue from here."""

    worker: str
    next_line: int = 0
    stdout: int = 0
    stderr: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class LogsKept:
    positions: list[LogPosition]  # of all workers in the call
    node_log_mb: int = 0  # the job's bound for each file of a worker, and for the events of a node
    node_log_days: float = 0  # and for logs of earlier runs on the node


@dataclass(frozen=True, kw_only=True, slots=True)
class LogsRequest:
    """Lines wanted, all conditions together; a field with its default asks for nothing."""

    cursor: Name = ""
    limit: Annotated[int, Bounds(ge=1, le=MAX_LINES)] = 1000
    tail: Annotated[int, Bounds(ge=0, le=MAX_LINES)] = 0  # only the last N; with a cursor, the last N before it
    worker: Name = ""
    rank: CountOrNone = -1
    node: Name = ""
    level: Annotated[int, Bounds(ge=0, le=50)] = 0  # at least
    since: MaybeTime = -1
    until: MaybeTime = -1
    text: SearchText = ""
    regex: SearchText = ""
    context: Annotated[int, Bounds(ge=0, le=MAX_CONTEXT)] = 0
    wait_s: Annotated[float, Bounds(ge=0, le=MAX_WAIT_S)] = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedLine:
    """One line."""

    worker: str
    node: str
    rank: int  # that the worker had then; -1: none
    line: int  # its number among the worker's lines
    time: float  # when its agent read it, seconds since the epoch
    level: int  # as in Python's logging
    stream: str
    text: str
    is_context: bool = False  # not found itself, but near a line that was


@dataclass(frozen=True, kw_only=True, slots=True)
class LogsView:
    lines: list[LoggedLine]
    next: str  # pass it as `cursor` for what comes after
    is_end: bool  # nothing more is kept now
    notes: list[str] = field(default_factory=list)  # what was dropped
    previous: str = ""  # of a tail: pass it as `cursor` with `tail` for what comes before; empty: nothing does
