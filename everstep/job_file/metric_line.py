"""The pattern of printed lines that hold a trial's metric: checked when an experiment is created, used by its nodes."""

from __future__ import annotations

import re

from everstep.errors import UsageError


def read_metric_line(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        message = f"{pattern!r} is not a regular expression: {error}"
        raise UsageError(message, hint=r"'val_loss=(?P<metric>\S+)'", code="metric-line-invalid") from None
    if compiled.groups == ("step" in compiled.groupindex):
        raise UsageError(
            f"{pattern!r} has no group for the metric",
            hint=r"'val_loss=(?P<metric>\S+)', and optionally (?P<step>\d+)",
            code="metric-line-without-group",
        )
    return compiled
