"""The searcher's section: what is wrong in it is an error with its numbers and the way out."""

from __future__ import annotations

import math

import pytest

from everstep.errors import UsageError
from everstep.search.config import read_searcher
from everstep.search.events import Validated
from everstep.search.search import Search
from everstep.search.space import Space

ADAPTIVE = {"name": "adaptive_asha", "metric": "loss", "max_trials": 16, "max_length": {"batches": 937}}


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"name": ["grid"]}, "there is no searcher ['grid']", "use one of single"),
        ({"name": {}}, "there is no searcher {}", "use one of single"),
        ({3: 4, "a": 1}, "has no 3, a", "its keys: name"),
        ({"max_trails": 4}, "has no max_trails", "did you mean max_trials?"),
        ({"max_trials": 0}, "searcher.max_trials: 0", "from 1 to 10000"),
        ({"max_trials": 10_001}, "searcher.max_trials: 10001", "from 1 to 10000"),
        ({"max_trials": True}, "searcher.max_trials: True", "a whole number"),
        ({"max_trials": "16"}, "searcher.max_trials: '16'", "a whole number"),
        ({"max_trials": math.nan}, "searcher.max_trials: nan", "a whole number"),
        ({"divisor": 1}, "searcher.divisor: 1", "above 1 and up to 1000000"),
        ({"divisor": math.nan}, "searcher.divisor: nan", "above 1"),
        ({"divisor": math.inf}, "searcher.divisor: inf", "up to 1000000"),
        ({"divisor": "4"}, "searcher.divisor: '4'", "for example 4"),
        ({"bracket_rungs": [3, 0]}, "searcher.bracket_rungs[1]: 0", "from 1 to 100"),
        ({"bracket_rungs": 3}, "searcher.bracket_rungs: 3", "[3, 2]"),
        ({"mode": "fast"}, "searcher.mode: 'fast'", "standard or aggressive or conservative"),
        ({"order": "any"}, "searcher.order: 'any'", "exact or arrival"),
        ({"smaller_is_better": "no"}, "searcher.smaller_is_better: 'no'", "true or false"),
        ({"max_length": {"batches": 1.5}}, "searcher.max_length.batches: 1.5", "a whole number"),
        ({"max_length": {"batches": 1, "epochs": 2}}, "'epochs': 2", "one of {batches: 937}"),
        ({"max_length": None}, "needs the maximum length of a trial", "max_length: {batches: 1000}"),
        ({"max_time": 10}, "max_time without time_metric", "max_length: {batches: 1000} alone"),
        ({"time_metric": "batches"}, "time_metric without max_time", "max_length: {batches: 1000} alone"),
        (
            {"max_time": 10, "time_metric": "epochs"},
            "max_length is 937 batches, but max_time is 10 epochs",
            "keep one of them",
        ),
    ],
)
def test_an_error_has_the_numbers_and_the_way_out(changes, message, hint):
    with pytest.raises(UsageError) as error:
        read_searcher({**ADAPTIVE, **changes})
    assert message in error.value.message and hint in (error.value.hint or "")


def test_the_same_length_may_be_given_twice():
    config = read_searcher({**ADAPTIVE, "max_time": 937, "time_metric": "batches"})
    assert (config.max_length, config.unit) == (937, "batches")


def test_a_time_metric_is_the_unit_of_all_lengths():
    given = {"name": "async_halving", "metric": "loss", "max_trials": 2, "num_rungs": 2, "divisor": 2}
    config = read_searcher({**given, "max_time": 600, "time_metric": "wall_s"})
    assert (config.max_length, config.unit) == (600, "wall_s")
    search = Search.begin(config, Space(), 7)
    search.start()
    search.apply(Validated(trial=1, length=310, metric=0.5))
    (stop, promotion) = search.apply(Validated(trial=2, length=300, metric=0.7))
    assert stop.reason == "0.7 is 2nd of 2 at 300 wall_s; only the best one continues"
    assert (promotion.trial, promotion.length) == (1, 600)


@pytest.mark.parametrize("max_trials", [1, 2, 3])
def test_fewer_trials_than_brackets_leave_out_the_shortest(max_trials):
    config = read_searcher({**ADAPTIVE, "max_trials": max_trials, "bracket_rungs": [1, 2, 3, 4, 5]})
    brackets = config.brackets()
    assert [len(each.lengths) for each in brackets] == [5, 4, 3][:max_trials]
    assert sum(each.num_trials for each in brackets) == max_trials
