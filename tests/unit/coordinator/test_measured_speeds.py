"""Speeds and starts as measured: by number of slots, and for trials that have not had a size, as others of their
experiment had it."""

from __future__ import annotations

import pytest

from everstep.coordinator.experiments.seam import TrialPace
from everstep.coordinator.pool.facts import START_S
from everstep.coordinator.pool.measured_speeds import TrialSpeeds


def pace(step: int, at: float, *, size: int = 1, is_waiting: bool = False) -> TrialPace:
    nodes = frozenset(f"a-{number}" for number in range(size))
    return TrialPace(generation=size, size=size, step=step, at=at, formed_at=2.5, nodes=nodes, is_waiting=is_waiting)


def train(speeds: TrialSpeeds, trial: int, per_s: float, *, size: int = 1) -> None:
    for second in range(1, 12):
        speeds.note((1, trial), pace(round(second * per_s), float(second), size=size), {})


def told(speeds: TrialSpeeds, *trials: int) -> list[dict[int, float]]:
    held = {(1, trial): [trial] for trial in trials}
    speeds.keep(held)
    return [dict(speeds.told[1, trial].batches_per_s) for trial in trials]


def test_a_speed_is_known_after_some_seconds_and_waiting_does_not_count() -> None:
    speeds = TrialSpeeds()
    speeds.note((1, 1), pace(10, 1.0), {})
    speeds.note((1, 1), pace(20, 2.0), {})
    assert told(speeds, 1) == [{}]
    train(speeds, 1, per_s=10)
    speeds.note((1, 1), pace(110, 50.0, is_waiting=True), {})
    (found,) = told(speeds, 1)
    assert found == {1: pytest.approx(10, rel=0.01)}


def test_a_trial_that_has_not_had_a_size_is_as_much_quicker_on_it_as_others() -> None:
    speeds = TrialSpeeds()
    train(speeds, 1, per_s=10)
    train(speeds, 1, per_s=18, size=2)
    train(speeds, 2, per_s=100)
    _, second, third = told(speeds, 1, 2, 3)
    assert second == {1: pytest.approx(100, rel=0.01), 2: pytest.approx(180, rel=0.02)}
    assert third == {1: pytest.approx(55, rel=0.02), 2: pytest.approx(99, rel=0.02)}, "the usual"


def test_a_start_lasts_from_the_order_to_the_first_generation_and_is_forgotten_with_its_experiment() -> None:
    speeds = TrialSpeeds()
    speeds.note_order(7, 1.0)
    assert told(speeds, 1) == [{}] and speeds.told[1, 1].start_s == START_S
    speeds.note_order(7, 1.0)
    speeds.note((1, 1), pace(3, 4.0), {7: "a-0"})
    speeds.keep({(1, 1): [7], (1, 2): []})
    assert speeds.told[1, 2].start_s == pytest.approx(1.5), "of the whole experiment"
    speeds.keep({(2, 1): [8]})
    assert speeds.told[2, 1].start_s == START_S
