"""What is told of a series: each new point, or if there are too many, those that show."""

from __future__ import annotations

import math

from everstep.coordinator.feed import MOST_POINTS, _NewPoints
from everstep.record.writing import SeriesNews


def told(*news):
    points = _NewPoints(7, "loss")
    for num_points, cut, found in news:
        points.add(SeriesNews("job", 7, "loss", num_points, cut, found))
    return points.view()


def test_points_of_several_reports_become_one_message():
    view = told((1, None, [(1, 10.0, 0.5)]), (2, None, [(2, 11.0, math.nan)]))
    assert (view["steps"], view["times"], view["values"], view["count"]) == ([1, 2], [10.0, 11.0], [0.5, "nan"], 2)
    assert (view["cut"], view["is_thinned"]) == (None, False)


def test_points_that_are_trained_again_replace_those_of_the_same_message():
    view = told((3, None, [(1, 0.0, 1.0), (2, 0.0, 2.0), (3, 0.0, 3.0)]), (2, 2, [(2, 0.0, 20.0)]))
    assert (view["cut"], view["steps"], view["values"]) == (2, [1, 2], [1.0, 20.0])


def test_many_points_are_thinned_to_their_ends_and_extremes():
    values = dict.fromkeys(range(MOST_POINTS + 1), 1.0) | {20: 9.0, 30: -9.0, 31: math.inf}
    view = told((100, None, [(step, 0.0, value) for step, value in values.items()]))
    assert view["is_thinned"] and view["steps"] == [0, 20, 30, MOST_POINTS]
