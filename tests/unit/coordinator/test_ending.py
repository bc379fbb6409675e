"""Who may leave, and when the job is over."""

from __future__ import annotations

import pytest

from everstep.coordinator.roster.ending import decide_end
from everstep.errors import Refused


@pytest.fixture
def trio(stage):
    play = stage(start_workers=3)
    play.arrive(*play.add(3))
    play.settle("w0", "w1", "w2")
    return play


def test_all_leave_together_and_the_job_is_finished(trio):
    trio.leave("w0", "w1", step=10)
    assert trio.status("w0") == "alive"

    trio.leave("w2", step=10)

    assert [trio.status(name) for name in ("w0", "w1", "w2")] == ["left"] * 3
    assert trio.roster.is_finished
    assert trio.roster.reason == "all 3 members left together at step 10"


def test_a_member_that_finds_that_they_do_not_fit_together_stops_the_job(trio):
    trio.break_("w1")  # others may have noticed that it went away before
    trio.break_("w1", reason="lr is 0.1 on w0 and 0.2 on w1", is_fatal=True)

    assert trio.roster.is_stopped
    assert trio.roster.reason == "w1: lr is 0.1 on w0 and 0.2 on w1"


def test_one_that_is_no_member_cannot_stop_the_job(trio):
    (newcomer,) = trio.add(1)
    with pytest.raises(Refused, match="not a member"):
        trio.break_(newcomer, is_fatal=True)

    assert not trio.roster.is_over


def test_all_are_asked_to_go_and_the_job_waits_for_others(trio):
    trio.leave("w0", "w1", "w2", step=10, is_asked=True)

    assert [trio.status(name) for name in ("w0", "w1", "w2")] == ["sent"] * 3
    assert not trio.roster.is_over

    trio.exit("w0", "w1", "w2", code=0)
    trio.arrive(*trio.add(1))
    assert trio.members == ["w3"]


def test_classic_workers_that_end_well_because_they_were_asked_to_have_not_finished_the_job(stage):
    play = stage()
    (name,) = play.add(1)
    play.exit(name, code=0, was_asked=True)

    assert play.status(name) == "sent"
    assert not play.roster.is_over


def test_one_that_is_done_among_those_who_are_asked_to_go_finishes_the_job(trio):
    trio.leave("w0", "w1", step=10, is_asked=True)
    trio.leave("w2", step=10)

    assert trio.roster.is_finished


def test_a_leaver_is_released_when_those_who_go_on_hold_the_state(trio):
    trio.leave("w1", step=10)
    trio.arrive("w0", "w2", step=10)
    assert trio.members == ["w0", "w2"]
    assert trio.status("w1") == "alive"

    trio.settle("w0")
    assert trio.status("w1") == "alive"
    trio.settle("w2")

    assert trio.status("w1") == "left"
    assert not trio.roster.is_over


def test_the_exit_of_one_that_left_is_no_loss(trio):
    trio.leave("w1", step=10)
    trio.arrive("w0", "w2", step=10)
    trio.settle("w0", "w2")

    trio.exit("w1", code=0)

    assert trio.status("w1") == "left"
    assert trio.generation.is_open


def test_a_leaver_ahead_of_all_others_is_called_back(trio):
    trio.leave("w1", step=11)
    trio.exit("w0")
    trio.arrive("w2", step=10)
    assert "w1 wants to leave but holds the newest state" not in trio.reason  # that is over: it is awaited now
    assert "w1" in trio.roster.recalled

    trio.arrive("w1", step=11)
    assert trio.members == ["w1", "w2"]
    trio.settle("w1", "w2")
    trio.leave("w1", step=11)
    trio.arrive("w2", step=11)
    trio.settle("w2")

    assert trio.status("w1") == "left"


def test_leavers_are_called_back_where_the_others_are_too_few_without_them(stage):
    play = stage(start_workers=3, min_workers=3)
    play.arrive(*play.add(3))
    play.settle("w0", "w1", "w2")
    play.leave("w1", "w2", step=10, is_asked=True)
    play.arrive("w0", step=10)
    assert set(play.roster.recalled) == {"w1", "w2"}, "w0 was asked a moment too late for its last step"

    play.arrive("w1", "w2", step=10)
    play.settle("w0", "w1", "w2")
    play.leave("w0", "w1", "w2", step=11, is_asked=True)

    assert [play.status(name) for name in ("w0", "w1", "w2")] == ["sent"] * 3
    assert not play.roster.is_over


def test_a_script_that_has_ended_is_not_called_back_to_make_the_others_enough(stage):
    play = stage(start_workers=3, min_workers=3)
    play.arrive(*play.add(3))
    play.settle("w0", "w1", "w2")
    play.leave("w1", "w2", step=10)
    play.arrive("w0", step=10)
    assert not play.roster.recalled
    assert "waiting for at least 3" in play.reason


def test_a_leaver_is_called_back_when_its_successors_die_before_they_hold_the_state(trio):
    trio.leave("w1", step=10)
    trio.arrive("w0", "w2", step=10)
    trio.exit("w0", "w2")
    assert "w1" in trio.roster.recalled

    trio.arrive("w1", step=10)
    assert (trio.members, trio.generation.continues) == (["w1"], 1)
    trio.settle("w1")
    trio.leave("w1", step=10)

    assert trio.roster.is_finished


def test_a_leaver_that_was_called_back_and_does_not_come_is_lost(trio):
    trio.leave("w1", step=11)
    trio.exit("w0")
    trio.arrive("w2", step=10)

    trio.after(2.0, "w1", "w2")

    assert trio.status("w1") == "lost"
    assert trio.members == ["w2"]


def test_a_worker_that_holds_nothing_may_go_at_once(trio):
    trio.add(1)
    trio.leave("w3")

    assert trio.status("w3") == "left"


def test_a_micro_batch_that_kills_worker_after_worker_stops_the_job(stage):
    play = stage(micro_batch_deaths=3)
    names = play.add(4)
    play.exit(names[0], step=17, micro_batch=2)
    play.exit(names[1], step=17, micro_batch=1)
    play.exit(names[2], step=17, micro_batch=2)
    play.exit(names[2], step=17, micro_batch=2)  # said twice, counted once
    assert not play.roster.is_over

    play.exit(names[3], step=17, micro_batch=2)
    assert not play.roster.is_over or play.roster.is_stopped
    assert play.roster.is_stopped
    assert "micro-batch 2 of step 17 killed w0, w2, w3" in play.roster.reason


def test_scripts_that_end_without_a_word_finish_the_job(stage):
    play = stage(start_workers=2)
    play.arrive(*play.add(2))
    play.exit("w0", code=0)
    assert play.generation.is_closed
    assert not play.roster.is_over

    play.exit("w1", code=0)

    assert play.roster.is_finished


def test_a_death_is_not_an_end(stage):
    play = stage(start_workers=2)
    play.arrive(*play.add(2))
    play.exit("w0", code=0)
    play.exit("w1", code=1)

    assert not decide_end(play.roster).is_finished
