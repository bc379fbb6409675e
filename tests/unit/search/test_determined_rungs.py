"""Determined's arithmetic: brackets, rungs, previews."""

from __future__ import annotations

from fractions import Fraction

import pytest
from unit.search.determined import BOUNDED, EMPTY_GRID, EXACT_LOGARITHM, instead, of, plain_brackets, searcher

from everstep.errors import UsageError
from everstep.search import rungs
from everstep.search.preview import preview
from everstep.search.read_space import read_space
from everstep.search.space import Space


@of("brackets")
def test_brackets(case):
    assert plain_brackets(searcher(case["input"])) == case["expect"]["brackets"]


@instead(EXACT_LOGARITHM)
def test_rungs_are_counted_with_whole_numbers(case):
    assert len(searcher(case["input"]).brackets()[0].lengths) == case["expect"]["rungs_by_exact_logarithm"]


@of("bracket_trials")
def test_bracket_trials(case):
    given = case["input"]
    trials = rungs.bracket_trials(given["max_trials"], Fraction(str(given["divisor"])), given["rungs"])
    assert list(trials) == case["expect"]["trials"]


@of("bracket_concurrency")
def test_bracket_concurrency(case):
    given = case["input"]
    found = rungs.bracket_concurrency(given["max_concurrent_trials"], Fraction(str(given["divisor"])), given["trials"])
    assert list(found) == case["expect"]["concurrent"]


@of("rung_lengths")
def test_rung_lengths(case):
    given = case["input"]
    found = rungs.rung_lengths(given["rungs"], Fraction(str(given["divisor"])), given["max_time"])
    assert list(found) == case["expect"]["lengths"]


@of("start_trials")
def test_start_trials(case):
    given = case["input"]
    divisor = Fraction(str(given["divisor"]))
    found = rungs.num_at_start(given["max_concurrent_trials"], divisor, given["num_rungs"], given["max_trials"])
    assert found == case["expect"]["start"]


@of("preview")
@pytest.mark.parametrize("order", ["exact", "arrival"])
def test_preview(case, order):
    config = searcher(case["input"]["searcher"], order=order)
    found = preview(config, read_space(case["input"].get("hyperparameters")))
    assert [list(line) for line in found.lines] == case["expect"]["trials"]


@instead(BOUNDED)
def test_there_are_never_more_trials_than_asked_for(case):
    given = case["input"].get("searcher", case["input"])
    assert sum(bracket.num_trials for bracket in searcher(given).brackets()) == given["max_trials"] == 2


@instead(EMPTY_GRID)
def test_a_grid_without_hyperparameters_is_refused(case):
    with pytest.raises(UsageError, match="has no trial"):
        preview(searcher(case["input"]["searcher"]), Space())
