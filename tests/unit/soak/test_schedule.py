"""A seed says all that happens in a schedule of the soak."""

from __future__ import annotations

from collections import Counter

from soak.faults import ACTS
from soak.schedule import BETWEEN_HOSTS, CONTROLLER, EXACT, FAST, NATIVE, TRIAL, decide

MANY = [decide(seed) for seed in range(400)]


def test_a_seed_decides_everything() -> None:
    assert [decide(seed) for seed in range(400)] == MANY
    assert len({schedule.faults for schedule in MANY}) == len(MANY)


def test_every_fault_comes_on_every_door() -> None:
    for door in (NATIVE, TRIAL, CONTROLLER):
        kinds = {fault.kind for schedule in MANY if schedule.door == door for fault in schedule.faults}
        assert kinds == ACTS.keys()


def test_every_door_has_the_modes_that_it_can_have() -> None:
    modes = {(schedule.door, schedule.mode) for schedule in MANY}
    assert modes == {(NATIVE, EXACT), (NATIVE, FAST), (TRIAL, EXACT), (TRIAL, FAST), (CONTROLLER, FAST)}


def test_no_schedule_asks_for_what_its_job_cannot_do() -> None:
    for schedule in MANY:
        kinds = {fault.kind for fault in schedule.faults}
        assert 3 <= len(schedule.faults) <= 8
        assert schedule.max_restarts or "kill-all" not in kinds, "nobody would come back"
        assert schedule.num_hosts or not kinds & BETWEEN_HOSTS.keys(), "there is no cable"
        assert not schedule.num_hosts or schedule.num_workers % schedule.num_hosts == 0


def test_some_faults_last_longer_than_a_lease_and_most_do_not() -> None:
    long = Counter(fault.lasts_s > 4.0 for schedule in MANY for fault in schedule.faults)
    assert 0.1 < long[True] / long.total() < 0.3
