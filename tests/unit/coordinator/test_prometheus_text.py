"""Prometheus's text format, and what is counted for it."""

from __future__ import annotations

from everstep.coordinator.experiments.seam import Candidate
from everstep.coordinator.pool.facts import GIVEN, Assignment, Grant, PoolDecision, SlotRelease
from everstep.coordinator.pool.pool_measures import moves_of
from everstep.coordinator.prometheus_text import MOST_LABEL_SETS, Histogram, by_label, counter, histogram, render


def test_a_family_with_labels() -> None:
    told = render([by_label("slots", "Slots.", ("pool", "kind"), {("b", 'say "hi"'): 1.5, ("a", "x\\y\nz"): 2})])
    assert told.splitlines() == [
        "# HELP everstep_slots Slots.",
        "# TYPE everstep_slots gauge",
        'everstep_slots{pool="a",kind="x\\\\y\\nz"} 2',
        'everstep_slots{pool="b",kind="say \\"hi\\""} 1.5',
    ]


def test_a_histogram_adds_up() -> None:
    measured = Histogram()
    for seconds in (0.0005, 0.02, 0.02, 99.0):
        measured.note(seconds)
    told = render([histogram("h", "Times.", measured)])
    assert 'everstep_h_bucket{le="0.001"} 1\n' in told and 'everstep_h_bucket{le="0.025"} 3\n' in told
    assert 'everstep_h_bucket{le="10"} 3\n' in told and 'everstep_h_bucket{le="+Inf"} 4\n' in told
    assert "everstep_h_count 4\n" in told and "everstep_h_sum 99.0405\n" in told


def test_names_that_anyone_may_choose_do_not_fill_the_monitoring() -> None:
    told = render([by_label("g", "G.", ("kind",), {(str(number),): 1 for number in range(2 * MOST_LABEL_SETS)})])
    assert told.count("everstep_g{") == MOST_LABEL_SETS


def test_a_large_counter_keeps_its_digits() -> None:
    assert "everstep_c_total 12345678901234567\n" in render([counter("c_total", "C.", 12345678901234567)])


def given(number: int, trial: int) -> Assignment:
    return Assignment(
        number=number, pool="p", agent="a", slot=number, experiment=1, trial=trial, state=GIVEN, reason="", began_at=0.0
    )


def grant(trial: int) -> Grant:
    wants = Candidate(
        experiment=1, trial=trial, trial_id=trial, job="", rank=(trial,), is_waiting=False, waiting_since=0.0
    )
    return Grant(candidate=wants, agent="a", slot=9, reason="")


def test_each_slot_counts_by_what_it_means_for_its_trial() -> None:
    live = {each.number: each for each in (given(1, 1), given(2, 2), given(3, 2), given(4, 3), given(5, 4))}
    release = [SlotRelease(number=number, how="park", reason="") for number in (2, 4)]
    decision = PoolDecision(
        give=(grant(1), grant(7), grant(7)), release=(*release, SlotRelease(number=5, how="kill", reason=""))
    )
    assert moves_of(decision, live) == {"grow": 2, "start": 1, "shrink": 1, "park": 1, "kill": 1}
