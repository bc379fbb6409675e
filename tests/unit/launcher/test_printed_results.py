"""Lines that a plain script prints become results of its trial."""

from __future__ import annotations

import pytest

from everstep.errors import UsageError
from everstep.launcher.printed_results import find_result, read_pattern


@pytest.mark.parametrize(
    ("pattern", "line", "expected"),
    [
        (r"batch (?P<length>\d+): loss=(?P<metric>\S+)", "batch 8: loss=0.5", (8, 0.5)),
        (r"step (?P<step>\d+) loss=(\S+)", "step 8 loss=0.5", (8, 0.5)),
        (r"loss=(\S+) at (?P<length>\d+)", "loss=1e-3 at 8", (8, 0.001)),
        (r"loss=(\S+)", "epoch 8 loss=0.5", (3, 0.5)),  # the number of the match
        (r"loss=(\S+)", "loss=nothing", None),
        (r"loss=(\S+)", "another line", None),
    ],
)
def test_a_line_is_a_result_or_none(pattern: str, line: str, expected: tuple[int, float] | None) -> None:
    found = find_result(read_pattern(pattern), line, 3)
    assert (None if found is None else (found.length, found.metric)) == expected


@pytest.mark.parametrize("pattern", ["loss=", r"(?P<length>\d+)", r"(?P<step>\d+)"])
def test_a_pattern_without_a_group_for_the_metric_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError) as refusal:
        read_pattern(pattern)
    assert refusal.value.code == "metric-line-groupless"
