"""Which warm nursery a run finds."""

from __future__ import annotations

from everstep.nursery.warm import _digest

WORKERS = {"PYTHONPATH": "/a:/b", "OMP_NUM_THREADS": "2", "HOME": "/root"}


def test_a_kept_nursery_is_found_whatever_order_the_variables_come_in() -> None:
    other_order = dict(reversed(WORKERS.items()))
    assert _digest(WORKERS, "workers") == _digest(other_order, "workers")
    assert _digest(WORKERS, "workers") == _digest(WORKERS | {"EVERSTEP_JOB": "another"}, "workers")


def test_one_that_has_read_something_else_is_not() -> None:
    kinds = [
        _digest(WORKERS, "workers"),
        _digest(WORKERS, "coordinator"),
        _digest(WORKERS | {"OMP_NUM_THREADS": "4"}, "workers"),
        _digest(WORKERS | {"PYTHONPATH": "/b:/a"}, "workers"),
    ]
    assert len(set(kinds)) == 4
