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
        ({"x": {"int": [1.5, 3]}}, "hyperparameters.x.int[0]: 1.5 is not a whole number", "use double"),
        ({"x": {"int": [1, 2, 3]}}, "hyperparameters.x.int: 3 numbers", "[LEAST, MOST]"),
        ({"x": {"log": [-5, -1]}}, "hyperparameters.x.log: [-5, -1] are values", "minval: -5, maxval: -1"),
        (
            {"x": {"type": "log", "base": 10, "minval": 1e-5, "maxval": 0.1}},
            "these are exponents, so the values would be from 1.00002 to 1.25893",
            "{log: [1e-05, 0.1]}",
        ),
        (
            {"x": {"type": "log", "base": 2, "minval": 16, "maxval": 4096}},
            "2^4096 is above 3.4e+38, the largest 32-bit number",
            "{log: [16, 4096]}",
        ),
        ({"x": {"double": ["a", 1]}}, "hyperparameters.x.double[0]: 'a'", "a finite number"),
        ({"x": {"type": "double", "minval": "1e-5", "maxval": 1}}, "hyperparameters.x.minval: '1e-5'", "1.0e-5"),
        ({"x": {"choice": []}}, "hyperparameters.x.choice: []", "at least one"),
        ({"x": {"choice": [1], "count": 1}}, "choice takes no count", "remove it"),
        ({"x": [{"int": [1, 2]}]}, "inside a list", "its own name"),
        ({"opt": {"type": "adam"}}, "hyperparameters.opt.type: 'adam'", "cannot be called `type`"),
        ({"x": {"int": [1, 2], "count": 0}}, "hyperparameters.x.count: 0", "from 1"),
        ({"x": {"double": [0, math.inf]}}, "hyperparameters.x.double[1]: inf", "a finite number"),
        ({"x": {"double": [0, 10**400]}}, "hyperparameters.x.double[1]: 1000", "a finite number"),
        ({"x": {"int": ["1", 3]}}, "hyperparameters.x.int[0]: '1' is not a whole number", "use double"),
        ({"x": [[{"int": [1, 2]}]]}, "inside a list", "its own name"),
        ({"x": [{"a": {"log": [1, 2]}}]}, "inside a list", "its own name"),
        ({"x": {"choice": [{"int": [1, 2]}, 3]}}, "inside a list", "its own name"),
        (
            {"x": {"type": "log", "base": 2, "minval": 16, "maxval": 256}},
            "2^256 is above 3.4e+38",
            "{log: [16, 256]}",
        ),
        (
            {"x": {"type": "log", "base": 10, "minval": -400, "maxval": -1}},
            "smallest values are too small",
            "minval: -5",
        ),
        ([1], "hyperparameters: [1] is not a mapping", "{lr: 0.1}"),
        ({"lr": {"log": [1e-5, 1], "cuont": 3}}, "lr: a range log: [1e-05, 1] has no cuont", "type: const"),
        ({"net": {"x": {"int": [1, 8], "step": 2}}}, "net.x: a range int: [1, 8] has no step", "remove"),
        ({"x": {"int": [1, 8], "double": [0, 1]}}, "a range int: [1, 8] has no double", "remove double"),
        (
            {"x": {"type": "log", "base": 10, "minval": 0.1, "maxval": 1}},
            "these are exponents, so the values would be from 1.25893 to 10",
            "{log: [0.1, 1]}",
        ),
        ({"net": {"x": math.nan}}, "hyperparameters.net.x: nan is not a finite number", "as a string"),
        ({"x": {"choice": [1, [math.inf]]}}, "hyperparameters.x: inf is not a finite number", "as a string"),
        ({"x": {"type": "const", "val": {"a": -math.inf}}}, "hyperparameters.x: -inf is not a finite number", "as a"),
        ({"type": "int", "minval": 1, "maxval": 3}, "hyperparameters.type: a hyperparameter cannot", "a name"),
        ({"net": {"\ud800": 1}}, "hyperparameters.net: the name '\\ud800' is not valid Unicode", "other characters"),
    ],
)
def test_an_error_names_the_hyperparameter_its_numbers_and_the_way_out(given, message, hint):
    with pytest.raises(UsageError) as error:
        read_space(given)
    assert message in error.value.message and hint in error.value.hint


@pytest.mark.parametrize("given", [{"choice": ["a", "b"]}, {"int": [1, 8]}, {"log": [1, 8], "count": 2}])
def test_hyperparameters_may_have_the_names_of_ranges(given):
    assert read_space(given).sample(1, 1) == given


@pytest.mark.parametrize(
    ("given", "note"),
    [
        ({"minval": 1, "maxval": 3}, "it has maxval and minval, but no type"),
        ({"vals": [1, 2]}, "it has vals, but no type"),
        ({"log": 1e-5}, "log is not a list"),
        ({"choice": "adam"}, "choice is not a list"),
    ],
)
def test_a_map_that_only_looks_like_a_range_is_a_constant_and_has_a_note(given, note):
    space = read_space({"net": {"x": given}, "y": {"int": [1, 3]}})
    assert space.sample(1, 1)["net"]["x"] == given
    assert space.notes == (f"hyperparameters.net.x is a constant map, not a range: {note}",)
    assert read_space({"x": {"type": "const", "val": given}}).notes == ()


@pytest.mark.parametrize(
    ("low", "high", "base", "ends"),
    [(8, 64, 2, "256 to 1.84467e+19"), (0, 0.1, 10, "1 to 1.25893"), (-1, 1, 0.5, "0.5 to 2")],
)
def test_the_values_that_exponents_mean_are_in_a_note(low, high, base, ends):
    space = read_space({"net": {"x": {"type": "log", "base": base, "minval": low, "maxval": high}}})
    assert space.notes == (f"net.x takes values from {ends}",)


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


@pytest.mark.parametrize("given", [{"int": [-16, 16]}, {"int": [0, 16]}])
def test_no_batch_is_empty(given):
    space = read_space({"global_batch_size": given}, num_micro_batches=8)
    assert {space.sample(1, number)["global_batch_size"] for number in range(100)} == {8, 16}


@pytest.mark.parametrize("given", [{"choice": [0, 8]}, {"choice": [-8]}, {"choice": [True]}, 0, "64", 64.0])
def test_a_batch_size_that_cannot_be_is_refused(given):
    with pytest.raises(UsageError, match="is not a multiple of 8") as error:
        read_space({"global_batch_size": given}, num_micro_batches=8)
    assert "use 8, the number of micro-batches" in error.value.hint


@pytest.mark.parametrize("given", [{"double": [16, 64]}, {"log": [16, 64]}])
def test_a_batch_size_from_a_range_of_real_numbers_is_refused(given):
    with pytest.raises(UsageError, match="not whole numbers") as error:
        read_space({"global_batch_size": given}, num_micro_batches=8)
    assert "{int: [LEAST, MOST]}" in error.value.hint


def test_a_grid_of_values_and_of_batch_sizes():
    given = {"global_batch_size": {"int": [1, 64], "count": 3}, "lr": {"log": [1e-4, 1e-2], "count": 3}}
    axes = dict(grid.axes(read_space(given, num_micro_batches=4)))
    assert [*axes["global_batch_size",]] == [4, 36, 64]
    assert [*axes["lr",]] == [1e-4, pytest.approx(1e-3), 1e-2]


def test_a_large_grid_is_not_kept_in_memory():
    given = {f"x{number}": {"int": [1, 10], "count": 10} for number in range(6)}
    axes = grid.axes(read_space(given))
    assert grid.num_points(axes) == 10**6
    million = {"count": 10**6}
    widest = {"r": {"double": [0, 1], **million}, "f": {"log": [1, 9], **million}, "w": {"int": [1, 10**9], **million}}
    assert grid.num_points(found := grid.axes(read_space(widest))) == 10**18
    assert grid.point(found, 10**18 - 1) == {"r": 1.0, "f": 9.0, "w": 10**9}
    assert grid.point(axes, 123456) == {f"x{place}": place + 2 for place in range(6)}


def test_a_grid_over_the_whole_range_of_numbers_stays_finite():
    ((_, values),) = grid.axes(read_space({"x": {"double": [-1.7e308, 1.7e308], "count": 3}}))
    assert list(values) == [-1.7e308, 0.0, 1.7e308]
