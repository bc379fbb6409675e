"""A series of points at every zoom: which rows a point changes, and which rows answer a window.

Level 0 is rows of points; each higher level is rows of spans that sum up one row of the level below each. A row
covers 16 cells, and a cell of level k covers 16^k steps, so 10^6 points are 62,500 + 3,906 + 244 + 15 + 1 rows. A plot
of P columns reads the coarsest level with at least P cells in the window: fewer than P rows, and each cell is at most
one column wide. A span keeps the first and last point, the least and greatest finite value, and how many values there
are of each kind, which is all that a line through all points shows inside one column of a picture.

The row of each level that holds the newest step is *open*: its span goes into the level above only when a later row
begins. A point that is added at the end thus changes one row, and rarely more. Readers add the open rows, one a level.

Pure: rows come in by a function, changes go out as values. Knows nothing of jobs or databases."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

BITS = 4  # of a step's number for each level: a factor of 16
LEVELS = 14  # for steps up to 2^53

_POINT, _SPAN = struct.Struct("<qdd"), struct.Struct("<qddqddddIIII")


class Span(NamedTuple):
    """Points next to each other, summed up. A single point is one too."""

    first_step: int
    first_time: float
    first: float
    last_step: int
    last_time: float
    last: float
    least: float  # of the finite values; +inf without any
    most: float  # of the finite values; -inf without any
    num_points: int
    nans: int = 0
    infs: int = 0
    negative_infs: int = 0


RowKey = tuple[int, int]  # level, and which row of it
Cells = dict[int, Span]  # of a row, by cell
Fetch = Callable[[RowKey], Cells]  # a row's cells, which may be changed; empty if there is no such row


def span_of(step: int, time: float, value: float) -> Span:
    if math.isfinite(value):
        return Span(step, time, value, step, time, value, value, value, 1)
    is_nan, is_inf = value != value, value == math.inf
    kinds = (int(is_nan), int(is_inf), int(not is_nan and not is_inf))
    return Span(step, time, value, step, time, value, math.inf, -math.inf, 1, *kinds)


def merged(spans: Sequence[Span]) -> Span:
    """Of spans in the order of their steps."""
    first, last = spans[0], spans[-1]
    if first is last:
        return first
    if len(spans) == 2:  # the usual case: a point is added to what there was
        low, high = min(first.least, last.least), max(first.most, last.most)
        counts = [one + other for one, other in zip(first[8:], last[8:], strict=True)]
    else:
        *_, least, most, num_points, nans, infs, negative_infs = zip(*spans, strict=True)
        low, high, counts = min(least), max(most), [sum(num_points), sum(nans), sum(infs), sum(negative_infs)]
    return Span(*first[:3], *last[3:6], low, high, *counts)


def row_of(level: int, step: int) -> RowKey:
    return level, step >> BITS * (level + 1)


def open_rows(last_step: int, below: int) -> list[RowKey]:
    """Whose spans are not in the level above."""
    return [row_of(level, last_step) for level in range(below)]


def num_levels(last_step: int) -> int:
    """Enough of them that the highest has one row, from step 0 on."""
    return max(1, -(-last_step.bit_length() // BITS))


# --- adding and removing points ---


def add(fetch: Fetch, last_step: int | None, points: Iterable[Span]) -> dict[RowKey, Cells]:
    """Add these, replacing those of the same steps; `last_step`: of the series so far. Returns all rows that change."""
    changed: dict[RowKey, Cells] = {}
    newest = -1 if last_step is None else last_step
    for point in points:
        key = row_of(0, point.first_step)
        if key not in changed:
            changed[key] = fetch(key)
        changed[key][point.first_step] = point
        newest = max(newest, point.first_step)
    level, dirty = 0, {number for _, number in changed}
    while dirty:
        open_now = newest >> BITS * (level + 1)
        if last_step is not None and (open_before := last_step >> BITS * (level + 1)) != open_now:
            dirty.add(open_before)
        dirty.discard(open_now)
        for number in dirty:
            key = (level + 1, number >> BITS)
            if key not in changed:
                changed[key] = fetch(key)
            cells = changed.get((level, number)) or fetch((level, number))
            # What the row's own open part held was added to it when the level below was done.
            changed[key][number] = merged([cell for _, cell in sorted(cells.items())])
        level, dirty = level + 1, {number >> BITS for number in dirty}
    return changed


def cut(fetch: Fetch, step: int, last_kept: int | None) -> tuple[dict[RowKey, Cells], list[RowKey]]:
    """Remove all points from `step` on; `last_kept`: the newest step before it. Returns the rows that change, and for
    each level the first row to remove, with all after it."""
    levels = range(LEVELS)
    if last_kept is None:
        return {}, [(level, 0) for level in levels]
    changed: dict[RowKey, Cells] = {}
    for level in levels:
        key = row_of(level, last_kept)
        first_gone = last_kept >> BITS * level if level else step  # the span of what is open now is not kept
        cells = fetch(key)
        for cell in [cell for cell in cells if cell >= first_gone]:
            del cells[cell]
        changed[key] = cells
    return changed, [(level, number + 1) for level, number in changed]


# --- reading ---


def choose_level(start: int, stop: int, num_columns: int) -> int:
    """For the steps from `start` to before `stop`: the coarsest level with a cell for each column, else points."""
    level = 0
    while level < LEVELS - 1 and num_cells(level + 1, start, stop) >= num_columns:
        level += 1
    return level


def num_cells(level: int, start: int, stop: int) -> int:
    return (stop - 1 >> BITS * level) - (start >> BITS * level) + 1 if stop > start else 0


def whole_cells(level: int, start: int, stop: int) -> tuple[int, int]:
    """The window, widened to the cells that it touches."""
    shift = BITS * level
    return start >> shift << shift, (stop - 1 >> shift) + 1 << shift


def window(
    level: int, start: int, stop: int, rows: Iterable[Cells], open_below: Iterable[Cells], num_columns: int
) -> list[Span]:
    """What to draw: spans of whole cells in the order of their steps, at most two a column.

    `rows`: of the level; `open_below`: the open rows of all lower levels, if the newest step is in the window."""
    start, stop = whole_cells(level, start, stop)
    first, last = start >> BITS * level, stop - 1 >> BITS * level
    found = {cell: [span] for cells in rows for cell, span in cells.items() if first <= cell <= last}
    rest = [span for cells in open_below for span in cells.values()]
    for span in sorted(rest):
        found.setdefault(span.first_step >> BITS * level, []).append(span)
    if len(found) > 2 * num_columns:
        per_column = max(1, (last - first + 1) // num_columns)
        columns: dict[int, list[Span]] = {}
        for cell, spans in sorted(found.items()):
            columns.setdefault((cell - first) // per_column, []).extend(spans)
        return [merged(spans) for spans in columns.values()]
    return [merged(spans) for _, spans in sorted(found.items())]


# --- rows as bytes ---


def pack(level: int, cells: Mapping[int, Span]) -> bytes:
    ordered = [cells[cell] for cell in sorted(cells)]
    if level == 0:
        return b"".join([_POINT.pack(each.first_step, each.first_time, each.first) for each in ordered])
    return b"".join([_SPAN.pack(*each) for each in ordered])


def unpack(level: int, data: bytes) -> Cells:
    if level == 0:
        return {step: span_of(step, time, value) for step, time, value in _POINT.iter_unpack(data)}
    shift = BITS * level
    return {span[0] >> shift: span for span in map(Span._make, _SPAN.iter_unpack(data))}


def pack_span(span: Span) -> bytes:
    return _SPAN.pack(*span)


def unpack_span(data: bytes) -> Span:
    return Span(*_SPAN.unpack(data))
