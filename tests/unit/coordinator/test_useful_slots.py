"""How many slots are of use to a trial, by the speeds that were measured."""

from __future__ import annotations

import pytest

from everstep.coordinator.pool.speeds import SpeedCurve


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 6, 8, 12, 16])
def test_a_trial_that_gets_no_quicker_beyond_some_slots_does_not_use_more(limit: int) -> None:
    curve = SpeedCurve({slots: float(min(slots, limit)) for slots in range(1, 25)})
    assert curve.useful_slots(1, 24) == limit


def test_all_slots_are_of_use_to_a_trial_that_scales() -> None:
    assert SpeedCurve({slots: slots**0.9 for slots in range(1, 25)}).useful_slots(1, 24) == 24


def test_one_slot_of_many_is_not_called_useless_because_a_speed_was_measured_a_little_low() -> None:
    measured = {1: 0.8, 7: 5.6, 8: 5.6, 9: 7.2}
    assert SpeedCurve(measured).useful_slots(1, 63) == 63


def test_one_size_beyond_what_was_measured_may_be_tried() -> None:
    assert SpeedCurve({1: 1.0, 2: 1.9}).useful_slots(1, 8) == 8
    assert SpeedCurve({1: 1.0, 2: 1.1}).useful_slots(1, 8) == 1
