"""Determined's hyperparameters: points of grids, and what samples may be."""

from __future__ import annotations

import pytest
from unit.search.determined import of

from everstep.search import grid
from everstep.search.read_space import read_space


@of("grid")
def test_grid(case):
    axes = grid.axes(read_space(case["input"]["hyperparameters"]))
    assert grid.num_points(axes) == case["expect"]["count"]
    assert [list(path) for path, _ in axes] == [axis["path"] for axis in case["expect"]["axes"]]
    for (_, values), axis in zip(axes, case["expect"]["axes"], strict=True):
        values = list(values)
        assert values == (pytest.approx(axis["values"], rel=1e-12) if is_numbers(values) else axis["values"])
    for place, point in enumerate(case["expect"]["points"]):
        found, wanted = flat(grid.point(axes, place)), flat(point)
        assert found.keys() == wanted.keys()
        assert all(is_same(found[path], wanted[path]) for path in wanted)


def is_same(found, wanted) -> bool:
    is_number = isinstance(wanted, int | float) and not isinstance(wanted, bool)
    return found == pytest.approx(wanted, rel=1e-12) if is_number else found == wanted


def is_numbers(values) -> bool:
    return all(isinstance(each, int | float) for each in values)


def flat(tree, path="") -> dict:
    if isinstance(tree, dict) and tree:
        return {key: value for name, each in tree.items() for key, value in flat(each, f"{path}.{name}").items()}
    return {path: tree}


@of("sampling")
@pytest.mark.parametrize("seed", range(10))
def test_samples_follow_the_rules(case, seed):
    space = read_space(case["input"]["hyperparameters"])
    for number in range(20):
        sample = space.sample(seed, number)
        assert sample == space.sample(seed, number)
        for path, rule, wanted in case["expect"]["rules"]:
            value = sample
            for name in path:
                value = value[name]
            if rule in ("from_below", "integer_from_to"):
                assert wanted[0] <= value and (value < wanted[1] or (rule != "from_below" and value <= wanted[1]))
                assert isinstance(value, int) == (rule == "integer_from_to")
            else:
                assert value == wanted if rule == "equals" else value in wanted
