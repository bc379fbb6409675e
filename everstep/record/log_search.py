"""Search chunks of a log: which lines of a chunk are wanted, and which chunks need not be opened.

Pure. A regular expression is applied to each line by itself, as grep does. It can take forever: a server must
apply it in a process that can be killed (`lines_with`, for `coordinator.regex_process`)."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from everstep.errors import UsageError
from everstep.record.log_chunk import Chunk
from everstep.record.log_trigrams import bits_of, may_hold
from everstep.wire import LogsRequest

try:
    from re import _constants as _codes  # type: ignore[attr-defined]
    from re import _parser as _syntax  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_constants as _codes
    import sre_parse as _syntax

Search = Callable[[bytes], Iterable[int]]  # the indexes of matching lines in a text


@dataclass(frozen=True, kw_only=True, slots=True)
class LogPart:
    """Lines of a chunk that one worker printed one after the other."""

    number: int  # in the order of arrival at the coordinator, among all parts of the job
    worker: str
    rank: int  # that it had then; -1: none
    first_line: int  # its number among the worker's lines
    num_lines: int


@dataclass(frozen=True)
class LogQuery:
    """Lines wanted, all conditions together; a field with its default asks for nothing."""

    text: str = ""
    regex: str = ""
    workers: frozenset[str] | None = None  # None: all
    rank: int | None = None
    node: str = ""  # the store knows whose workers are where
    level: int = 0  # at least
    since: float | None = None  # seconds since the epoch, inclusive
    until: float | None = None  # exclusive

    @cached_property
    def needle(self) -> bytes:
        return self.text.encode(errors="replace")

    @cached_property
    def bits(self) -> tuple[int, ...]:
        """That the filter of a chunk has if it may hold a wanted line."""
        return bits_of(self.needle) + bits_of(self.required)

    @cached_property
    def required(self) -> bytes:
        """A text that each line has that matches the regular expression."""
        return required_text(self.regex).encode(errors="replace")

    def may_match(self, *, first_time: float, last_time: float, top_level: int, chunk_filter: bytes | None) -> bool:
        """Whether a chunk with these facts must be opened."""
        if self.level > top_level:
            return False
        if (self.since is not None and last_time < self.since) or (self.until is not None and first_time >= self.until):
            return False
        return chunk_filter is None or may_hold(self.bits, chunk_filter)


def log_query(request: LogsRequest) -> LogQuery:
    """In a call, a negative number asks for nothing."""
    return LogQuery(
        text=request.text,
        regex=request.regex,
        workers=frozenset([request.worker]) if request.worker else None,
        rank=None if request.rank < 0 else request.rank,
        node=request.node,
        level=request.level,
        since=None if request.since < 0 else request.since,
        until=None if request.until < 0 else request.until,
    )


def check_query(query: LogQuery) -> None:
    if "\n" in query.text:
        raise UsageError("the text contains a newline", hint="search for text within one line", code="log-text-lines")
    compile_regex(query.regex)


def compile_regex(regex: str) -> re.Pattern[str]:
    try:
        return re.compile(regex)
    except (re.error, OverflowError, RecursionError) as error:
        hint = "Python's syntax; --grep finds plain text"
        raise UsageError(f"not a regular expression: {error}", hint=hint, code="log-regex-invalid") from None


def find(chunk: Chunk, parts: Sequence[LogPart], query: LogQuery, search: Search | None = None) -> list[int]:
    """The indexes of the wanted lines. `search` finds those of the regular expression elsewhere."""
    found: Iterable[int] = _indexes_with(chunk.text, query.needle) if query.needle else range(chunk.num_lines)
    if query.level:
        found = [index for index in found if chunk.level_at(index) >= query.level]
    if query.since is not None or query.until is not None:
        found = _within(chunk, found, query)
    if query.workers is not None or query.rank is not None:
        found = _of_parts(parts, found, query)
    if query.regex:
        found = _matching(chunk, list(found), query, search or by_regex(query.regex))
    return list(found)


def by_regex(regex: str) -> Search:
    pattern = compile_regex(regex)
    return lambda text: lines_with(pattern, text)


def lines_with(pattern: re.Pattern[str], text: bytes) -> list[int]:
    lines = text.decode(errors="replace").split("\n")[:-1]
    return [index for index, line in enumerate(lines) if pattern.search(line)]


def part_at(parts: Sequence[LogPart], index: int) -> tuple[LogPart, int]:
    """The part that a line of the chunk is in, and its index there."""
    ends = list(accumulate(part.num_lines for part in parts))
    place = bisect.bisect_right(ends, index)
    return parts[place], index - (ends[place] - parts[place].num_lines)


def required_text(regex: str) -> str:
    """The longest text that each match of it has; empty if unknown."""
    if not regex:
        return ""
    tree = _syntax.parse(regex)
    if tree.state.flags & re.IGNORECASE:
        return ""
    runs, run = [""], ""
    for code, value in tree:
        if code is _codes.LITERAL:
            run += chr(value)
        elif code is not _codes.AT:  # a place between characters separates nothing
            run = ""
        runs.append(run)
    return max(runs, key=len)


def _matching(chunk: Chunk, found: list[int], query: LogQuery, search: Search) -> list[int]:
    """Of the lines that were found, those that match. Plain text is found much faster than a match, so lines without
    the required text are not tried."""
    if query.required:
        having = set(_indexes_with(chunk.text, query.required))
        found = [index for index in found if index in having]
    if not found:
        return []
    if len(found) == chunk.num_lines:
        return list(search(chunk.text))
    return [found[index] for index in search(b"".join(chunk.lines[index] + b"\n" for index in found))]


def _indexes_with(text: bytes, needle: bytes) -> list[int]:
    found, index, counted = [], 0, 0
    at = text.find(needle)
    while at >= 0:
        index += text.count(b"\n", counted, at)
        found.append(index)
        counted = text.find(b"\n", at)  # the end of this line: it is found once
        at = text.find(needle, counted)
    return found


def _within(chunk: Chunk, found: Iterable[int], query: LogQuery) -> list[int]:
    since = -(1 << 62) if query.since is None else round(query.since * 1000)
    until = 1 << 62 if query.until is None else round(query.until * 1000)
    times = chunk.times
    return [index for index in found if since <= times[index] < until]


def _of_parts(parts: Sequence[LogPart], found: Iterable[int], query: LogQuery) -> list[int]:
    wanted = []
    for part in parts:
        is_wanted = query.workers is None or part.worker in query.workers
        is_wanted = is_wanted and (query.rank is None or part.rank == query.rank)
        wanted += [is_wanted] * part.num_lines
    return [index for index in found if wanted[index]]
