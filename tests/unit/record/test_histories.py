"""Whose word counts at a step."""

from __future__ import annotations

from everstep.record.histories import MOST_KEPT, begins, begun, counts


def test_the_newest_history_that_has_reported_at_or_before_a_step_owns_it():
    known = begun(begun([], 1, 0), 3, 10)
    assert [counts(known, 1, step) for step in (9, 10, 11)] == [True, False, False]
    assert [counts(known, 2, step) for step in (9, 10)] == [True, False]
    assert counts(known, 3, 10) and counts(known, 4, 10)
    assert [begins(known, history) for history in (1, 3, 4)] == [False, False, True]


def test_a_history_that_goes_back_further_ends_those_that_began_later():
    assert begun([(1, 0), (3, 10), (4, 20)], 5, 10) == [(1, 0), (5, 10)]


def test_what_is_forgotten_is_not_given_to_a_late_one():
    known = []
    for history in range(MOST_KEPT + 5):
        known = begun(known, history, 10 * history)
    assert len(known) == MOST_KEPT
    assert not counts(known, 1, 10)
    assert counts(known, MOST_KEPT + 4, 10)
