"""Use by person and day: split at midnight in UTC."""

from __future__ import annotations

from everstep.coordinator.pool.people import People, Person
from everstep.coordinator.pool.use import DAY_S, SlotTime, use_by_day

MIDNIGHT = 20_000 * DAY_S  # 2024-10-04


def told(*held: SlotTime, since: float = 0.0) -> list[tuple[str, str, float]]:
    return [(each.day, each.person, each.slot_seconds) for each in use_by_day(held, since)]


def held(person: str, began: float, ended: float) -> SlotTime:
    return SlotTime(person=person, began_at=MIDNIGHT + began, ended_at=MIDNIGHT + ended)


def test_slots_of_a_person_add_up_and_days_are_apart() -> None:
    assert told(held("alice", -10, 20), held("alice", 5, 6), held("", 1, 2)) == [
        ("2024-10-03", "alice", 10.0),
        ("2024-10-04", "", 1.0),
        ("2024-10-04", "alice", 21.0),
    ]


def test_several_days_are_whole_days_and_what_was_before_does_not_count() -> None:
    found = told(held("bob", -2 * DAY_S, DAY_S + 1), since=MIDNIGHT - DAY_S)
    assert found == [("2024-10-03", "bob", DAY_S), ("2024-10-04", "bob", DAY_S), ("2024-10-05", "bob", 1.0)]


def test_a_clock_that_was_set_back_uses_nothing() -> None:
    assert told(held("bob", 5, 3)) == []


def test_people_who_are_not_listed_have_the_default() -> None:
    people = People(known={"alice": Person(weight=3.0, quota=2)})
    assert (people.of("alice").weight, people.of("alice").quota) == (3.0, 2)
    assert people.of("bob") == people.of("") == Person()
