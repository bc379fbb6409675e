"""The table of a job's series, and the hint for a series that does not exist."""

from __future__ import annotations

import pytest

from everstep.cli.metrics import MetricsOptions, _print_series, find_series
from everstep.errors import UsageError
from everstep.wire import SeriesList, SeriesView


def series(number: int, name: str) -> SeriesView:
    values = {"last": 1.0, "least": 1.0, "most": 1.0}
    return SeriesView(series=number, name=name, count=1, first_step=1, last_step=1, last_time=1.0, **values)


LONG = "training/" + "layer/" * 30 + "norm"
FOUND = [*(series(n, f"system/{n:02}") for n in range(1, 12)), series(12, LONG), series(13, "loss")]


class Source:
    def series(self, after=0, limit=1000, *, is_own=False):
        return SeriesList(series=[each for each in FOUND if each.series > after], num_series=len(FOUND))


def test_names_in_a_pipe_are_whole_and_the_jobs_own_series_come_first(capsys):
    _print_series(FOUND, MetricsOptions(id="job"))
    said = capsys.readouterr().out
    assert LONG in said and said.index("loss") < said.index(LONG) < said.index("system/01")


def test_the_hint_for_an_unknown_series_names_the_jobs_own_first():
    with pytest.raises(UsageError) as refused:
        find_series(Source(), "los")
    assert refused.value.hint.startswith(f"there are loss, {LONG}, system/")
    assert refused.value.hint.endswith(", and 3 more")
