"""Messages about a job's metrics: what is reported, the series that it makes, and what is read to draw one.

JSON has no NaN and no infinities: among numbers they travel as the texts "nan", "inf" and "-inf"."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from everstep.wire.bounds import MAX_INT, MAX_NAME, Amount, Bounds, Count, Name, OneOf
from everstep.wire.encoding import to_json

MOST_REPORTS = 1000  # in one call …
MOST_VALUES = 1000  # … and numbers in each
MAX_DETAILS_BYTES = 1 << 16  # as JSON, of each report
MAX_DEPTH = 8
MOST_SERIES = 1000  # in one answer
MOST_COLUMNS = 1500  # of a window: fewer than 2,000 rows are read
SYSTEM = "system/"  # the names of series about nodes and workers begin so

Value = float | Annotated[str, OneOf("nan", "inf", "-inf")]


def to_value(number: float) -> float | str:
    """A number, for JSON."""
    return number if math.isfinite(number) else str(number)


def from_value(value: float | str) -> float:
    return float(value)


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricReport:
    """What a job has found out at some step: a point of a series for each number, and anything else as details. A
    later report of the same kind and step replaces it, and one of a later history all from its step on."""

    kind: Name = ""  # training, validation, checkpoint, …; the first part of the series' names
    step: Count
    time: Amount  # of day, where it was found out
    generation: Count = 0  # of the worker; 0: none
    values: Annotated[dict[Name, Value], Bounds(max_length=MOST_VALUES)] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)  # texts, lists and objects; no NaN

    def problems(self) -> Iterator[str]:
        if not self.details:
            return
        yield from value_problems(self.details, MAX_DEPTH)
        if (num_bytes := len(to_json(self.details))) > MAX_DETAILS_BYTES:
            yield (
                f"the details of {self.kind or 'the report'} at step {self.step} have {num_bytes} bytes, "
                f"more than {MAX_DETAILS_BYTES}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricReports:
    reports: Annotated[list[MetricReport], Bounds(max_length=MOST_REPORTS)]

    def problems(self) -> Iterator[str]:
        for report in self.reports:
            yield from report.problems()


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricsKept:
    """Durable. Outdated ones are of an older history, at steps that a newer one has trained again: not kept."""

    num_points: int
    num_outdated: int = 0  # points and details
    reason: str = ""  # for the outdated ones
    next_s: float = 0.0  # to an agent: seconds until its next sample; 0: none is wanted


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesView:
    series: int
    name: str  # training/loss
    count: int
    first_step: int
    last_step: int
    last_time: float
    last: Value
    least: float | None  # of the finite values; None without any
    most: float | None
    nans: int = 0
    infs: int = 0
    negative_infs: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesList:
    series: list[SeriesView]  # in the order of their numbers
    num_series: int  # of the job, of those asked for


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesWindow:
    """What to draw of a series from `start` to before `stop`, as lists of equal length: each entry is one point, or
    the span of points next to each other. The window is the one asked for, widened to whole spans."""

    series: int
    name: str
    start: int
    stop: int
    num_points: int  # in the window
    num_rows: int  # read for it
    span_steps: int  # that a row's span covers; 1: every entry is a point
    first_steps: list[int]
    first_times: list[float]
    firsts: list[Value]
    # Empty if every entry is a point: its first value is all there is.
    last_steps: list[int] = field(default_factory=list)
    last_times: list[float] = field(default_factory=list)
    lasts: list[Value] = field(default_factory=list)
    least: list[float | None] = field(default_factory=list)  # of the finite values; None without any
    most: list[float | None] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    nans: list[int] = field(default_factory=list)
    infs: list[int] = field(default_factory=list)
    negative_infs: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportView:
    """What a report has besides numbers, or a report without any: a checkpoint, the end of a fit, …"""

    kind: str
    step: int
    time: float
    details: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportsView:
    reports: list[ReportView]  # in the order of keeping
    last: int  # pass it as `since` for later ones


def value_problems(value: Any, depth: int) -> Iterator[str]:
    """Of any JSON value."""
    if depth == 0:
        yield f"values are nested more than {MAX_DEPTH} deep"
    elif isinstance(value, dict):
        for name, each in value.items():
            if len(name) > MAX_NAME:
                yield f"a name has {len(name)} characters, more than {MAX_NAME}"
            yield from value_problems(each, depth - 1)
    elif isinstance(value, list):
        for each in value:
            yield from value_problems(each, depth - 1)
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{value} is not finite"
    elif isinstance(value, int) and abs(value) > MAX_INT:
        yield f"{value.bit_length()} bits are too many for an integer"
