"""How often agents report, and which watches must be repeated."""

from __future__ import annotations

import pytest

from everstep.coordinator.signs import LONGEST_REPORT_S, WorkerSigns, report_interval_s
from everstep.wire import Policy


@pytest.mark.parametrize(
    ("num_nodes", "lease_s", "expected_s"),
    [(2, 3.0, 1.0), (1000, 3.0, 1.0), (1000, 30.0, 2.0), (4000, 30.0, 8.0), (10_000, 600.0, LONGEST_REPORT_S)],
)
def test_more_nodes_report_less_often_as_far_as_leases_allow(num_nodes, lease_s, expected_s):
    assert report_interval_s(num_nodes, Policy(lease_s=lease_s)) == expected_s


def test_a_held_watch_comes_again_when_its_worker_is_placed_in_a_generation_that_it_does_not_know():
    woken = []
    signs = WorkerSigns({}, 3.0, lambda: 0.0, woken.append)
    signs.begin("w0", 0.0)
    signs.place("w0", "a0", 1)
    assert woken == []

    signs.all["w0"].num_held = 1
    for _ in range(2):
        signs.place("w0", "a0", 2)
    assert woken == ["a0"]
