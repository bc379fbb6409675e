"""A node on which trials of several experiments fail is set aside."""

from __future__ import annotations

from everstep.coordinator.pool.node_health import SeenEnd, decide_set_aside


def end(experiment: int, code: int = 1, *, was_asked: bool = False) -> SeenEnd:
    return SeenEnd(experiment=experiment, trial=7, exit_code=code, was_asked=was_asked, reason="no space left")


def test_failures_of_three_experiments_in_a_row_set_a_node_aside() -> None:
    reason = decide_set_aside([end(9, 0), end(1), end(2), end(2), end(3)])
    assert reason and all(name in reason for name in ("e1-t7", "e2-t7", "e3-t7", "no space left"))


def test_one_bad_experiment_does_not() -> None:
    assert not decide_set_aside([end(1)] * 20 + [end(2)] * 20)


def test_a_trial_that_succeeds_clears_the_node() -> None:
    assert not decide_set_aside([end(1), end(2), end(4, 0), end(3)])


def test_trials_that_were_asked_to_end_say_nothing() -> None:
    asked = end(5, -9, was_asked=True)
    assert not decide_set_aside([end(1), end(2), asked])
    assert decide_set_aside([end(1), asked, end(2), end(6, 0, was_asked=True), end(3)])


def test_experiments_that_fail_elsewhere_too_do_not_count() -> None:
    assert not decide_set_aside([end(1), end(2), end(3)], failed_elsewhere={2})
