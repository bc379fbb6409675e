"""What a worker that asks for samples gets, and when a lost worker's samples are free."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.coordinator.shards.leasing import HeldLease, Holder, LeaseFacts, decide_lease, decide_release

W0, W1, W2 = ("w0", "w0-1"), ("w1", "w1-1"), ("w2", "w2-1")


def lease(number, since=0.0, **more):
    start = number * 10
    return HeldLease(lease=number, start=start, stop=start + 10, left=((start, start + 10),), since=since, **more)


def holding(key, *leases, **more):
    return {key: Holder(worker=key[0], incarnation=key[1], leases={each.lease: each for each in leases}, **more)}


def facts(**given):
    usual = {
        "asker": W0, "again": None, "fresh": None, "num_before": 0, "num_out": 0, "holders": {}, "pending": {},
        "deadlines": {}, "durations_s": [1.0, 1.0, 1.0], "straggler_factor": 4.0, "num_free": 0, "batch_size": 5,
        "shard_size": 10, "paces": {}, "per_s_of_all": 0.0,
    }  # fmt: skip
    return LeaseFacts(**(usual | given))


def test_what_is_to_be_done_again_goes_first():
    decision = decide_lease(facts(again=lease(3), fresh=(50, 60), num_out=10), now=0.0)
    assert (decision.again, decision.fresh) == (3, None)


def test_then_comes_the_next_shard():
    assert decide_lease(facts(fresh=(50, 60), num_out=10), now=0.0).fresh == (50, 60)


def test_an_epoch_waits_for_the_one_before():
    decision = decide_lease(facts(fresh=(100, 110), num_before=10, num_out=10, holders=holding(W1, lease(9))), now=0.0)
    assert decision.fresh is None
    assert not decision.is_end
    assert decision.reason == "10 samples are leased to w1; the next epoch begins when they are done"


def test_the_end_is_when_nothing_is_left_and_nothing_is_out():
    assert decide_lease(facts(), now=0.0).is_end
    assert not decide_lease(facts(num_out=1, holders=holding(W1, lease(1))), now=0.0).is_end


def test_a_slow_worker_is_asked_when_nothing_else_is_left():
    slow = facts(num_out=10, holders=holding(W1, lease(1, since=0.0)))
    early, late = decide_lease(slow, now=3.9), decide_lease(slow, now=4.0)
    assert (early.asked, early.next_look) == (None, 4.0)
    assert late.asked == (W1, 1)
    assert "w1 has held lease 1 for 4.0 s; 1.0 s is usual" in late.reason
    assert decide_lease(replace(slow, fresh=(50, 60)), now=9.0).asked is None


@pytest.mark.parametrize("more", [{"is_asked": True}, {"is_takeover": True}])
def test_nobody_is_asked_twice_for_the_same_samples(more):
    assert decide_lease(facts(num_out=10, holders=holding(W1, lease(1, **more))), now=99.0).asked is None


def test_nobody_is_asked_for_its_own_or_before_the_usual_is_known():
    assert decide_lease(facts(num_out=10, holders=holding(W0, lease(1))), now=99.0).asked is None
    assert decide_lease(facts(num_out=10, holders=holding(W1, lease(1)), durations_s=[1.0]), now=99.0).asked is None


def test_a_silent_classic_worker_loses_what_it_holds():
    silent = facts(num_out=10, holders=holding(W1, lease(1)), deadlines={W1: 60.0, W2: 1.0}, durations_s=[])
    assert decide_lease(silent, now=59.0).next_look == 60.0
    assert decide_lease(silent, now=60.0).silent == W1


# --- when a lost worker's samples are free ---


@pytest.fixture
def play(stage):
    play = stage(start_workers=3)
    play.add(3)
    play.arrive("w0", "w1", "w2")
    play.settle("w0", "w1", "w2")
    return play


def holder(worker, generation=1, incarnation=None):
    return Holder(worker=worker, incarnation=incarnation or f"{worker}-1", generation=generation)


def test_a_live_worker_keeps_its_samples(play):
    assert not decide_release(holder("w1"), play.roster, settled=1).is_gone


def test_a_dead_members_samples_are_free_when_the_next_generation_has_settled(play):
    play.exit("w1")
    waits = decide_release(holder("w1"), play.roster, settled=1)
    assert (waits.is_gone, waits.is_released) == (True, False)
    assert waits.reason.endswith("generation 2 is to say what was committed of its samples")
    play.arrive("w0", "w2")
    assert not decide_release(holder("w1"), play.roster, settled=1).is_released
    assert decide_release(holder("w1"), play.roster, settled=2).is_released


def test_samples_that_are_not_used_in_steps_are_free_at_once(play):
    play.exit("w1")
    assert decide_release(holder("w1", generation=0), play.roster, settled=0).is_released


def test_one_that_died_outside_of_the_generation_needs_no_further_one(play):
    (name,) = play.add(1)
    play.exit(name)
    assert decide_release(holder(name), play.roster, settled=1).is_released


def test_a_frozen_worker_that_comes_back_keeps_its_samples(play):
    play.after(3.0, "w0", "w2")
    assert play.status("w1") == "lost"
    assert decide_release(holder("w1"), play.roster, settled=1).is_gone
    play.arrive("w1")
    assert not decide_release(holder("w1"), play.roster, settled=1).is_gone


def test_a_new_process_of_the_same_name_does_not_hold_up_the_samples_of_the_old_one(play):
    play.announce("w1", "w1-2")
    assert not decide_release(holder("w1"), play.roster, settled=1).is_released
    play.arrive("w0", "w1", "w2")
    assert "w1" in play.members
    assert decide_release(holder("w1"), play.roster, settled=2).is_released
    assert not decide_release(holder("w1", incarnation="w1-2"), play.roster, settled=2).is_gone


def test_a_leavers_samples_are_free_when_those_who_go_on_have_settled(play):
    play.leave("w1", step=3)
    play.arrive("w0", "w2", step=3)
    play.settle("w0", "w2", step=3)
    assert play.status("w1") == "left"
    assert not decide_release(holder("w1"), play.roster, settled=1).is_released
    assert decide_release(holder("w1"), play.roster, settled=2).is_released
