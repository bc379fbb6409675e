"""What a validation of a trial means to its search: how long the trial has trained, and the metric that is compared.

Pure. NaN and infinities stay what they are, as texts: to the search they are the worst values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everstep.errors import UsageError
from everstep.record.numbers import split
from everstep.wire.bounds import MAX_INT
from everstep.wire.metrics import from_value


def read_result(
    metrics: Mapping[str, Any], *, metric: str, unit: str, counted: int | None = None
) -> tuple[int, float | str]:
    """`counted`: the trial's length, if the loop counts it itself; otherwise it is the metric named `unit`."""
    values, others = split(metrics)
    if metric not in values:
        problem = f"is a {type(others[metric]).__name__}, not a number" if metric in others else "is missing"
        raise UsageError(
            f"the searcher's metric {metric!r} {problem}; reported numbers: {', '.join(sorted(values)) or 'none'}",
            hint="set searcher.metric to a number that the script reports, or that evaluate_batch returns",
            code="searcher-metric-missing",
        )
    if counted is None and unit not in values:
        raise UsageError(
            f"the search counts lengths by {unit!r}, which is missing; reported numbers: {', '.join(sorted(values))}",
            hint=f'report it together with the metric: {{"{metric}": …, "{unit}": …}}; or give max_length in batches',
            code="searcher-time-metric-missing",
        )
    length = from_value(values[unit]) if counted is None else counted
    if not 0 <= length <= MAX_INT:  # also NaN
        raise UsageError(
            f"the trial's length, {unit}, is {length}",
            hint="a length must be 0 or more",
            code="searcher-length-invalid",
        )
    return int(length), values[metric]
