"""`--since` and `--until`: how long ago, a time today, or a date, by the clock of who types it."""

from __future__ import annotations

from datetime import datetime

import pytest

from everstep.cli.logs import parse_time
from everstep.errors import UsageError

NOW = datetime(2026, 1, 31, 15, 0, 10).timestamp()


@pytest.mark.parametrize(
    ("text", "then"),
    [
        ("10m", datetime(2026, 1, 31, 14, 50, 10)),
        ("14:30", datetime(2026, 1, 31, 14, 30)),
        ("14:30:05", datetime(2026, 1, 31, 14, 30, 5)),
        ("2026-01-30", datetime(2026, 1, 30)),
        ("2026-01-30T14:30", datetime(2026, 1, 30, 14, 30)),
    ],
)
def test_a_time_is_read(text: str, then: datetime) -> None:
    assert parse_time(text, NOW) == then.timestamp()


def test_one_with_a_time_zone_means_that_zone() -> None:
    assert parse_time("2026-01-30T14:30Z", NOW) == datetime.fromisoformat("2026-01-30T14:30+00:00").timestamp()


def test_lines_since_a_time_that_is_still_to_come_are_from_yesterday_on() -> None:
    assert parse_time("23:30", NOW, is_past=True) == datetime(2026, 1, 30, 23, 30).timestamp()
    assert parse_time("14:30", NOW, is_past=True) == datetime(2026, 1, 31, 14, 30).timestamp()
    assert parse_time("2026-02-01T14:30", NOW, is_past=True) == datetime(2026, 2, 1, 14, 30).timestamp()


def test_anything_else_is_refused_with_examples() -> None:
    with pytest.raises(UsageError, match="not a time: 'yesterday'") as refused:
        parse_time("yesterday", NOW)
    assert "14:30" in str(refused.value.hint)
