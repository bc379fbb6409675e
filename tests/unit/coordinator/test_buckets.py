"""So many at once, so many per second, and a memory that does not grow."""

from __future__ import annotations

import pytest

from everstep.coordinator.edge.guard import Buckets


def test_it_is_emptied_and_fills_again():
    buckets = Buckets(per_s=2.0, at_once=3, max_keys=10)

    assert [buckets.take("a", 0.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert buckets.take("b", 0.0) == 0.0  # somebody else's is full
    assert buckets.take("a", 0.4) == pytest.approx(0.1)
    assert buckets.take("a", 0.5) == 0.0
    assert [buckets.take("a", 100.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]  # never more than full


def test_it_forgets_whom_it_has_not_heard_of_for_longest():
    buckets = Buckets(per_s=1.0, at_once=1, max_keys=2)
    for key in ("a", "b", "a", "c"):
        buckets.take(key, 0.0)

    assert buckets.take("a", 0.0) > 0.0
    assert buckets.take("b", 0.0) == 0.0
