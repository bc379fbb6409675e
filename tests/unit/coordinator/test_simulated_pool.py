"""Whole searches and many people in virtual time: the real decisions, and the real searches."""

from __future__ import annotations

from typing import Any

import pytest

from everstep.coordinator.pool.people import Person
from everstep.testing import SimulatedPool

SEARCHER = {
    "name": "adaptive_asha",
    "metric": "loss",
    "max_trials": 32,
    "max_rungs": 3,
    "max_length": {"batches": 64},
    "max_concurrent_trials": 0,
}
ENDLESS = {"name": "random", "metric": "loss", "max_trials": 50, "max_length": {"batches": 400}}


def speed(hparams: Any, slots: int) -> float:
    return 4.0 * float(slots**0.9)


def loss(hparams: Any, length: int) -> float:
    return abs(float(hparams["lr"]) - 0.01) + 1 / length


def searched(num_slots: int, **options: Any) -> Any:
    pool = SimulatedPool(nodes={f"n{place}": 1 for place in range(num_slots)})
    space = {"lr": {"log": [1e-4, 1e-1]}}
    pool.submit(searcher=SEARCHER, hyperparameters=space, curve=loss, batches_per_s=speed, seed=7, **options)
    return pool.run()


def test_an_exact_search_finds_the_same_winner_on_any_number_of_slots() -> None:
    runs = [searched(num_slots, max_slots=8) for num_slots in (1, 2, 3, 5, 16, 64)]
    assert len({run.winners[1] for run in runs}) == 1
    assert len({tuple((each.number, each.length) for each in run.trials) for run in runs}) == 1


def test_trials_that_grow_are_done_sooner_than_trials_of_any_fixed_size() -> None:
    elastic_s = searched(8, max_slots=8).makespan_s
    fixed_s = {slots: searched(8, min_slots=slots, max_slots=slots).makespan_s for slots in (1, 2, 4, 8)}
    assert elastic_s < min(fixed_s.values())


def shared(weights: dict[str, float], num_slots: int, seconds: float, **options: dict[str, Any]) -> dict[str, float]:
    """The mean number of slots that each person had."""
    pool = SimulatedPool(
        nodes={"a": num_slots}, people={name: Person(weight=weight) for name, weight in weights.items()}
    )
    for person in weights:
        pool.submit(searcher=ENDLESS, person=person, batches_per_s=speed, **options.get(person, {}))
    return {name: slot_s / seconds for name, slot_s in pool.run(until=seconds).slot_s.items()}


@pytest.mark.parametrize("max_slots", [1, 4])
def test_two_people_with_weights_1_and_3_share_4_slots_1_to_3(max_slots: int) -> None:
    options = {"alice": {"max_slots": max_slots}, "bob": {"max_slots": max_slots}}
    used = shared({"alice": 1.0, "bob": 3.0}, 4, 60.0, **options)
    assert used == {"alice": pytest.approx(1.0, rel=0.05), "bob": pytest.approx(3.0, rel=0.05)}


def test_a_slot_that_cannot_be_divided_goes_from_one_person_to_the_other() -> None:
    used = shared({"alice": 1.0, "bob": 1.0}, 3, 240.0)
    assert used == {"alice": pytest.approx(1.5, rel=0.05), "bob": pytest.approx(1.5, rel=0.05)}


def test_a_trial_that_needs_all_slots_gets_them_for_its_share_of_the_time() -> None:
    used = shared({"alice": 1.0, "bob": 1.0}, 4, 240.0, bob={"min_slots": 4, "max_slots": 4})
    assert used["bob"] == pytest.approx(2.0, rel=0.15)


def test_a_trial_that_needs_4_slots_does_not_starve_behind_small_ones() -> None:
    pool = SimulatedPool(nodes={"a": 2, "b": 2})
    for _ in range(3):
        pool.submit(searcher=ENDLESS, batches_per_s=speed)
    large = pool.submit(searcher={**ENDLESS, "max_trials": 1}, at=30.0, min_slots=4, max_slots=4, batches_per_s=speed)
    run = pool.run(until=90.0)
    (trial,) = [each for each in run.trials if each.experiment == large]
    assert trial.started_at is not None


def test_an_urgent_experiment_gets_its_slots_at_once_and_no_work_is_lost() -> None:
    pool = SimulatedPool(nodes={"a": 8})
    usual = pool.submit(searcher=ENDLESS, batches_per_s=speed, max_slots=4)
    urgent = pool.submit(searcher={**ENDLESS, "max_trials": 4}, priority=1, at=20.0, batches_per_s=speed)
    before = {each.number: each.length for each in pool.run(until=19.9).trials if each.experiment == usual}
    run = pool.run(until=22.0)
    assert [each.started_at for each in run.trials if each.experiment == urgent] == [pytest.approx(20.65)] * 4
    assert all(each.length >= before[each.number] for each in run.trials if each.experiment == usual)


def test_trials_leave_a_node_that_must_be_emptied() -> None:
    pool = SimulatedPool(nodes={"a": 2, "b": 2})
    number = pool.submit(searcher={**ENDLESS, "max_trials": 4}, batches_per_s=speed, max_slots=2)
    pool.change_node("a", at=10.0, is_leaving=True)
    run = pool.run()
    assert run.winners[number] is not None
    assert run.makespan_s > 4 * 400 / 4.0 / 4  # two slots were left


def test_a_request_that_the_pool_can_never_meet_is_refused_with_the_numbers() -> None:
    pool = SimulatedPool(nodes={"a": 4}, most_slots=8)
    number = pool.submit(searcher=ENDLESS, min_slots=12, max_slots=12)
    assert pool.run().impossible == {number: "needs 12 slots for a trial: pool default has at most 8"}


def test_a_search_waits_for_validations_as_long_as_they_take() -> None:
    def lasts_s(validate_s: float) -> float:
        pool = SimulatedPool(nodes={"a": 1}, start_s=0.0, regroup_s=0.0, leave_s=0.0, validate_s=validate_s)
        pool.submit(searcher={**ENDLESS, "max_trials": 3, "max_length": {"batches": 8}}, batches_per_s=speed)
        return pool.run().makespan_s

    assert lasts_s(0.0) == pytest.approx(3 * 2.0)
    assert lasts_s(0.5) == pytest.approx(3 * 2.5)


def test_two_large_trials_of_one_person_take_turns() -> None:
    """Neither waits with half of the slots for the other half."""
    pool = SimulatedPool(nodes={"a": 2, "b": 2})
    large = {"searcher": {**ENDLESS, "max_trials": 1}, "min_slots": 4, "max_slots": 4, "batches_per_s": speed}
    numbers = [pool.submit(**large) for _ in range(2)]  # type: ignore[arg-type]
    half = pool.run(until=20.0)
    assert all(each.slot_s > 0.0 for each in half.trials), "both have begun"
    assert all(pool.run().winners[number] for number in numbers)
