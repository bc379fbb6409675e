"""Spaces: both forms, samples with the same bits on every machine, and errors that name the hyperparameter."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter

import pytest

from everstep.errors import UsageError
from everstep.search import grid
from everstep.search.draws import trial_seed
from everstep.search.read_space import read_space

ALL = {
    "lr": {"log": [1e-5, 1e-1]},
    "wd": {"type": "log", "base": 10, "minval": -5, "maxval": -1},
    "layers": {"int": [1, 8]},
    "net": {"drop": {"double": [0, 0.5]}, "act": {"choice": ["relu", "gelu"]}, "none": {}},
    "dims": [64, 64],
    "name": {"type": "const", "val": {"a": 1}},
}


def test_samples_have_these_bits_on_every_machine():
    """A change of these numbers changes every search."""
    sample = read_space(ALL).sample(7, 3)
    assert sample["lr"].hex() == "0x1.a9c42e3a75c9bp-10"
    assert sample["wd"].hex() == "0x1.36a525d0bdd10p-14"
    assert sample["net"]["drop"].hex() == "0x1.57d6be9a12da3p-2"
    assert (sample["layers"], sample["net"]["act"], trial_seed(7, 3)) == (1, "relu", 845887773)
    assert sample["dims"] == [64, 64] and sample["net"]["none"] == {} and sample["name"] == {"a": 1}


def test_samples_do_not_depend_on_how_decimals_are_computed():
    """Python has them in C and in Python; neither asks the C library for `exp`."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(sys.argv[1:]))\n"
        "from everstep.search.read_space import read_space\n"
        f"print([read_space({ALL!r}).sample(7, number) for number in range(30)], 'decimal' in sys.modules)"
    )
    said = [
        subprocess.run([sys.executable, "-c", code, *without], capture_output=True, text=True, check=True).stdout
        for without in ([], ["_decimal"])
    ]
    assert said[0] == said[1]


def test_both_forms_cover_their_range_evenly():
    space = read_space(ALL)
    samples = [space.sample(1, number) for number in range(1000)]
    assert all(count > 80 for count in Counter(each["layers"] for each in samples).values())
    assert {each["layers"] for each in samples} == set(range(1, 9))
    for name in ("lr", "wd"):
        assert all(1e-5 <= each[name] < 1e-1 for each in samples)
        decades = Counter(math.floor(math.log10(each[name])) for each in samples)
        assert all(abs(decades[decade] - 250) < 60 for decade in (-5, -4, -3, -2))
    assert all(0 <= each["net"]["drop"] < 0.5 for each in samples)


def test_a_trial_cannot_change_the_values_of_another():
    space = read_space(ALL)
    space.sample(1, 1)["dims"].append(3)
    assert space.sample(1, 2)["dims"] == [64, 64]


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ({"a": {"b": {"int": [8, 1]}}}, "hyperparameters.a.b: from 8 to 1", "smaller"),
        ({"x": {"int": [1.5, 3]}}, "hyperparameters.x.int[0]: 1.5", "whole"),
        ({"x": {"int": [1, 2, 3]}}, "hyperparameters.x.int: 3 numbers", "[LEAST, MOST]"),
        ({"x": {"log": [-5, -1]}}, "hyperparameters.x.log: [-5, -1] are values", "minval: -5, maxval: -1"),
        (
            {"x": {"type": "log", "base": 10, "minval": 1e-5, "maxval": 0.1}},
            "these are exponents, so it would take 1.00002 to 1.25893",
            "{log: [1e-05, 0.1]}",
        ),
        (
            {"x": {"type": "log", "base": 2, "minval": 16, "maxval": 4096}},
            "2^4096 is not a finite number",
            "{log: [16, 4096]}",
        ),
        ({"x": {"double": ["a", 1]}}, "hyperparameters.x.double[0]: 'a'", "a number"),
        ({"x": {"type": "double", "minval": "1e-5", "maxval": 1}}, "hyperparameters.x.minval: '1e-5'", "1.0e-5"),
        ({"x": {"choice": []}}, "hyperparameters.x.choice: []", "at least one"),
        ({"x": {"choice": [1], "count": 1}}, "choice with count", "leave it out"),
        ({"x": [{"int": [1, 2]}]}, "inside a list", "name of its own"),
        ({"opt": {"type": "adam"}}, "hyperparameters.opt.type: 'adam'", "cannot be called `type`"),
        ({"x": {"int": [1, 2], "count": 0}}, "hyperparameters.x.count: 0", "from 1"),
        ({"x": {"double": [0, math.inf]}}, "hyperparameters.x.double[1]: inf", "a number"),
    ],
)
def test_an_error_names_the_hyperparameter_its_numbers_and_the_way_out(given, message, hint):
    with pytest.raises(UsageError) as error:
        read_space(given)
    assert message in error.value.message and hint in error.value.hint


def test_yaml_reads_small_numbers_as_texts_which_the_short_form_takes():
    assert read_space({"x": {"log": ["1e-5", "1e-1"]}}) == read_space({"x": {"log": [1e-5, 1e-1]}})


def test_a_searched_batch_size_is_a_multiple_of_the_micro_batches():
    space = read_space({"global_batch_size": {"int": [10, 100]}}, num_micro_batches=8)
    assert {space.sample(1, number)["global_batch_size"] for number in range(300)} == set(range(16, 97, 8))
    assert space.notes == ("global_batch_size takes the 11 multiples of 8 micro-batches from 16 to 96",)
    with pytest.raises(UsageError, match="no multiple of 8 between 1 and 7"):
        read_space({"global_batch_size": {"int": [1, 7]}}, num_micro_batches=8)
    with pytest.raises(UsageError, match="12 is not a multiple of 8"):
        read_space({"global_batch_size": {"choice": [16, 12]}}, num_micro_batches=8)
    assert read_space({"net": {"global_batch_size": {"int": [1, 7]}}}, num_micro_batches=8).notes == ()


def test_a_grid_of_values_and_of_batch_sizes():
    given = {"global_batch_size": {"int": [1, 64], "count": 3}, "lr": {"log": [1e-4, 1e-2], "count": 3}}
    axes = dict(grid.axes(read_space(given, num_micro_batches=4)))
    assert axes["global_batch_size",] == (4, 36, 64)
    assert axes["lr",] == (1e-4, pytest.approx(1e-3), 1e-2)


def test_a_large_grid_is_not_kept_in_memory():
    given = {f"x{number}": {"int": [1, 10], "count": 10} for number in range(6)}
    axes = grid.axes(read_space(given))
    assert grid.num_points(axes) == 10**6
    assert grid.point(axes, 123456) == {f"x{place}": place + 2 for place in range(6)}
