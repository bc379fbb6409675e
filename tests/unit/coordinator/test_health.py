"""Who is lost, who hangs, and when a whole generation stalls."""

from __future__ import annotations

import pytest

from everstep.coordinator.roster.health import decide_hang, decide_health, decide_stall
from everstep.wire import COMPUTING, WAITING


@pytest.fixture
def pair(stage):
    play = stage(start_workers=2, lease_s=3.0, stall_s=5.0, hang_s=60.0)
    play.arrive(*play.add(2))
    return play


def test_silence_for_a_lease_is_a_loss_and_closes_the_generation(pair):
    pair.after(2.9, "w0")
    assert pair.status("w1") == "alive"

    pair.after(0.1, "w0")

    assert pair.status("w1") == "lost"
    assert pair.generation.reason == "w1 is lost: no proof of life for 3.0 s"


def test_the_next_look_is_when_the_first_lease_ends(pair):
    pair.now += 1.0
    pair.hear("w1")

    assert decide_health(pair.roster, pair.signs, pair.now).next_look == pytest.approx(1003.0)


def test_one_that_computes_for_ever_while_the_others_wait_hangs(pair):
    pair.hear("w0", phase=WAITING)
    pair.hear("w1", phase=COMPUTING)
    pair.after(59.0, "w0", "w1")
    assert pair.status("w1") == "alive"

    pair.after(1.0, "w0", "w1")

    assert pair.status("w1") == "lost"
    assert pair.roster.workers["w1"].wants_stacks
    assert "has computed for 60.0 s" in pair.generation.reason


def test_a_worker_with_long_steps_gets_ten_of_them(pair):
    pair.hear("w0", phase=WAITING)
    pair.hear("w1", phase=COMPUTING, longest_step_s=30.0)
    pair.after(299.0, "w0", "w1")
    assert decide_hang(pair.roster, pair.signs, pair.now).lost == {}
    assert decide_hang(pair.roster, pair.signs, pair.now).next_look == pytest.approx(1300.0)

    pair.now += 1.0
    pair.hear("w0", phase=WAITING, phase_s=299.0)
    pair.hear("w1", phase=COMPUTING, phase_s=300.0, longest_step_s=30.0)
    assert list(decide_hang(pair.roster, pair.signs, pair.now).lost) == ["w1"]


def test_two_that_compute_do_not_hang(pair):
    pair.hear("w0", "w1", phase=COMPUTING)
    pair.after(1000.0, "w0", "w1")

    assert pair.generation.is_open


def test_all_waiting_for_each_other_is_a_cut_network(pair):
    pair.hear("w0", "w1", phase=WAITING)
    pair.after(4.0, "w0", "w1")
    assert pair.generation.is_open

    pair.after(1.0, "w0", "w1")

    assert pair.generation.is_closed
    assert pair.generation.must_probe
    assert "all 2 members have waited for each other for 5.0 s" in pair.generation.reason


def test_a_stall_is_judged_by_the_longest_wait_so_far(pair):
    pair.hear("w0", phase=WAITING, longest_wait_s=4.0)
    pair.hear("w1", phase=WAITING, longest_wait_s=1.0)
    pair.after(19.0, "w0", "w1")
    assert pair.generation.is_open

    pair.after(1.0, "w0", "w1")
    assert pair.generation.is_closed


def test_before_the_first_step_more_time_is_given(pair):
    pair.hear("w0", "w1", phase=WAITING, step=0)
    pair.after(29.0, "w0", "w1")
    assert pair.generation.is_open

    pair.after(1.0, "w0", "w1")
    assert pair.generation.is_closed


def test_what_was_said_long_ago_is_no_evidence(pair):
    pair.hear("w0", "w1", phase=WAITING)
    pair.now += 10.0  # their agents prove that they live, but they themselves cannot reach the coordinator

    assert not decide_stall(pair.roster, pair.signs, pair.now).is_found


def test_a_wait_that_began_in_an_earlier_generation_counts_from_the_new_one(pair):
    pair.now += 2.0
    pair.hear("w0", "w1", phase=WAITING)
    pair.break_("w0")
    pair.arrive("w0", "w1")
    pair.hear("w0", "w1", phase=WAITING, phase_s=60.0)

    assert not decide_stall(pair.roster, pair.signs, pair.now).is_found


def test_the_next_look_is_never_in_the_past(pair):
    for phases in [(WAITING, WAITING), (WAITING, COMPUTING), (COMPUTING, COMPUTING)]:
        for phase_s in (0.0, 4.0, 1000.0):
            for name, phase in zip(("w0", "w1"), phases, strict=True):
                pair.hear(name, phase=phase, phase_s=phase_s)
            for decide in (decide_hang, decide_stall):
                look = decide(pair.roster, pair.signs, pair.now).next_look
                assert look is None or look > pair.now
