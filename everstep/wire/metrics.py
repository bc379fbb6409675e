"""Messages about a job's metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricReport:
    """What a fit has found out at some batch. Of one kind and batch, the last word counts."""

    kind: str  # training, validation, checkpoint, …
    batches: int
    time: float  # of day, where it was found out
    epochs: int | None = None  # finished ones; None: not known
    records: int | None = None
    metrics: dict[str, Any] = field(default_factory=dict)  # finite numbers, null, texts; lists and objects of them
    facts: dict[str, Any] = field(default_factory=dict)  # whatever else there is to say


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricReports:
    """POST …/metrics: keep these; durable before the reply."""

    reports: list[MetricReport]


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricsView:
    """GET …/metrics?since=…&limit=…: what was kept after `since`, oldest first; so many of the last if negative."""

    reports: list[MetricReport]
    last: int  # to be given as `since` for what comes after
