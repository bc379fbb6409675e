"""Messages about a job's metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from everstep.wire.bounds import MAX_INT, MAX_NAME, Amount, Bounds, Count, Name
from everstep.wire.encoding import to_json

MOST_REPORTS = 1000  # in one call …
MAX_REPORT_BYTES = 1 << 16  # … and as JSON, each
MAX_DEPTH = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricReport:
    """What a fit has found out at some batch. A later report of the same kind and batch replaces it."""

    kind: Name  # training, validation, checkpoint, …
    batches: Count
    time: Amount  # of day, where it was found out
    epochs: Count | None = None  # finished ones; None: not known
    records: Count | None = None
    metrics: dict[str, Any] = field(default_factory=dict)  # finite numbers, null, texts; lists and objects of them
    facts: dict[str, Any] = field(default_factory=dict)  # anything else worth reporting

    def problems(self) -> Iterator[str]:
        yield from _value_problems(self.metrics, MAX_DEPTH)
        yield from _value_problems(self.facts, MAX_DEPTH)
        if (num_bytes := len(to_json(self))) > MAX_REPORT_BYTES:
            yield f"{self.kind} of batch {self.batches} has {num_bytes} bytes, more than {MAX_REPORT_BYTES}"


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricReports:
    reports: Annotated[list[MetricReport], Bounds(max_length=MOST_REPORTS)]

    def problems(self) -> Iterator[str]:
        for report in self.reports:
            yield from report.problems()


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricsView:
    reports: list[MetricReport]  # in the order of keeping
    last: int  # pass it as `since` for later ones


def _value_problems(value: Any, depth: int) -> Iterator[str]:
    """Of any JSON value."""
    if depth == 0:
        yield f"values are nested more than {MAX_DEPTH} deep"
    elif isinstance(value, dict):
        for name, each in value.items():
            if len(name) > MAX_NAME:
                yield f"a name has {len(name)} characters, more than {MAX_NAME}"
            yield from _value_problems(each, depth - 1)
    elif isinstance(value, list):
        for each in value:
            yield from _value_problems(each, depth - 1)
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{value} is not finite"
    elif isinstance(value, int) and abs(value) > MAX_INT:
        yield f"{value.bit_length()} bits are too many for an integer"
