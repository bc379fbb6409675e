"""What a search will cost."""

from __future__ import annotations

import sys

import pytest

from everstep.search.config import read_searcher
from everstep.search.preview import measured_unit_s, preview
from everstep.search.read_space import read_space
from everstep.search.space import Space

ADAPTIVE = {"name": "adaptive_asha", "metric": "loss", "max_trials": 16, "max_length": {"batches": 937}}


def test_trials_lengths_slot_hours_and_time():
    config = read_searcher(ADAPTIVE)
    found = preview(config, Space(), batch_s=0.5, num_slots=4)
    assert found.lines == ((9, 58), (5, 234), (2, 937)) and found.num_trials == 16
    assert found.total_length == 9 * 58 + 5 * 234 + 2 * 937
    assert found.slot_hours == pytest.approx(found.total_length * 0.5 / 3600)
    assert found.total_length * 0.5 / 4 <= found.expected_s <= found.total_length * 0.5
    assert 937 * 0.5 <= found.first_full_s <= found.expected_s
    assert "12 trials in one cohort, compared at 58, 234, 937 batches" in found.notes


def test_more_slots_take_less_time_and_the_same_work():
    config = read_searcher(ADAPTIVE)
    few, many = (preview(config, Space(), batch_s=1.0, num_slots=number) for number in (1, 8))
    assert few.slot_hours == many.slot_hours and few.expected_s == few.total_length
    assert many.expected_s < few.expected_s / 2


def test_without_a_length_or_a_time_there_are_no_hours():
    config = read_searcher({"name": "random", "metric": "loss", "max_trials": 3})
    found = preview(config, Space(), batch_s=1.0)
    assert found.lines == ((3, "full"),) and found.slot_hours is None and found.expected_s is None
    assert preview(read_searcher(ADAPTIVE), Space()).slot_hours is None


def test_it_says_what_will_be_different():
    space = read_space({"global_batch_size": {"int": [1, 64]}}, num_micro_batches=4)
    assert "multiples of 4 micro-batches" in preview(read_searcher(ADAPTIVE), space).notes[0]
    assert (
        "depends on which results arrive first"
        in preview(read_searcher({**ADAPTIVE, "order": "arrival"}), Space()).notes[0]
    )


@pytest.mark.parametrize("name", ["tpe", "grid"])
def test_every_searcher_has_a_preview(name):
    given = {"name": name, "metric": "loss", "max_length": {"batches": 10}}
    config = read_searcher({**given, "max_trials": 6} if name == "tpe" else given)
    found = preview(config, read_space({"x": {"choice": [1, 2, 3, 4, 5, 6]}}), batch_s=1.0, num_slots=2)
    assert found.lines == ((6, 10),) and found.expected_s == 30


def test_ten_thousand_trials_are_previewed():
    config = read_searcher({**ADAPTIVE, "max_trials": 10_000, "max_length": {"batches": 6400}})
    found = preview(config, Space(), batch_s=0.1, num_slots=16)
    assert found.num_trials == 10_000
    assert found.lines == ((5295, 25), (2978, 100), (1297, 400), (324, 1600), (106, 6400))


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"mode": "aggressive"},
        {"order": "arrival"},
        {"order": "arrival", "stop_once": False},
        {"name": "async_halving", "cohort": 1},
        {"name": "random"},
        {"name": "tpe"},
    ],
    ids=str,
)
def test_ten_thousand_trials_take_no_more_work_each_than_a_thousand(more):
    """Calls instead of seconds: a second has room for 200 calls for each of 10,000 trials."""
    few, many = (calls_of_preview({**ADAPTIVE, "max_trials": number, **more}) / number for number in (1000, 10_000))
    assert many < 1.2 * few + 5 and many < 200


def calls_of_preview(given: dict) -> int:
    config, number = read_searcher(given), 0

    def count(frame, event, arg):
        nonlocal number
        number += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        preview(config, Space(), batch_s=0.1, num_slots=16)
    finally:
        sys.setprofile(None)
    return number


@pytest.mark.parametrize(("cohort", "expected"), [(None, 800), (16, 400), (64, 400), (60, 500)])
def test_cohorts_of_a_model_wait_for_each_other(cohort, expected):
    """64 trials of 100 batches on 16 slots."""
    given = {"name": "tpe", "metric": "loss", "max_trials": 64, "max_length": 100, "max_concurrent_trials": 0}
    found = preview(read_searcher({**given, "cohort": cohort}), Space(), batch_s=1.0, num_slots=16)
    assert (found.expected_s, found.first_full_s, found.num_at_once) == (expected, 100, cohort or 8)


def test_the_time_may_come_from_earlier_trials():
    assert measured_unit_s([]) is None
    assert measured_unit_s([(0, 3.0), (10, 0.0)]) is None
    assert measured_unit_s([(90, 9.0), (10, 11.0), (0, 5.0)]) == 0.2

    found = preview(read_searcher(ADAPTIVE), Space(), batch_s=measured_unit_s([(100, 20.0)]))
    assert found == preview(read_searcher(ADAPTIVE), Space(), batch_s=0.2)
