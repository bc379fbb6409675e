"""Nobody holds the state any more: who was there before does not lead, and all begin again together."""

from __future__ import annotations

import pytest

from everstep.errors import Refused


def test_a_spare_from_before_the_loss_does_not_lead_but_is_started_again(stage):
    play = stage(start_workers=2, max_workers=2)
    w0, w1, spare = play.add(3)
    play.arrive(w0, w1)
    play.settle(w0, w1)
    play.arrive(spare)  # its script loaded what there was then: nothing

    play.exit(w0, w1, step=10_000)

    assert play.generation.is_closed
    assert play.status(spare) == "lost"  # so that its agent kills it
    assert "started before" in play.roster.workers[spare].reason
    with pytest.raises(Refused, match="w2 was started before"):
        play.arrive(spare)
    play.exit(spare)
    (fresh,) = play.add(1)
    play.arrive(fresh)
    assert (play.members, play.generation.continues) == ([fresh], 0)
    assert "NO LIVE WORKER HOLDS THE STATE" in play.generation.reason


def test_a_former_member_with_an_old_state_does_not_lead_either(stage):
    play = stage(start_workers=2)
    w0, w1 = play.add(2)
    play.arrive(w0, w1)
    play.settle(w0, w1)
    play.break_(w0, must_probe=True)
    play.arrive(w0, step=5)
    play.arrive(w1, step=5, unreachable=(w0,))
    assert play.members == [w0]  # w1 is left out, with the state of generation 1
    play.settle(w0, step=5)

    play.exit(w0, step=900)

    assert play.generation.is_closed
    assert play.status(w1) == "lost"


def test_one_that_is_still_starting_when_the_state_is_lost_is_started_again(stage):
    """It may have loaded already: the last save may have come after that."""
    play = stage()
    (w0,) = play.add(1)
    play.arrive(w0)
    play.settle(w0)
    (announced,) = play.add(1)
    reserved = play.reserve()

    play.exit(w0)

    assert (play.status(announced), play.status(reserved)) == ("lost", "lost")
    with pytest.raises(Refused, match="was started before"):
        play.announce(reserved, "w2-1")


def test_a_new_process_under_the_same_name_is_a_fresh_one(stage):
    play = stage(start_workers=2, max_workers=2)
    w0, w1, spare = play.add(3)
    play.arrive(w0, w1)
    play.settle(w0, w1)
    play.arrive(spare)
    play.exit(w0, w1)

    play.announce(spare, "w2-2")
    play.arrive(spare)

    assert play.members == [spare]


def test_a_start_that_the_loss_of_the_state_asks_for_is_no_restart(stage):
    play = stage(start_workers=2, max_workers=2, max_restarts=0)
    w0, w1, spare = play.add(3)
    play.arrive(w0, w1)
    play.settle(w0, w1)
    play.arrive(spare)
    play.exit(w0, w1)
    play.exit(spare)

    assert play.reserve(replaces=w0) == ""  # no restart is allowed
    assert play.reserve(replaces=spare) == "w3"
    assert play.roster.num_restarts == 0


def test_a_holder_outside_leads_when_all_members_died_before_they_did_a_step(stage):
    play = stage(start_workers=2)
    w0, w1 = play.add(2)
    play.arrive(w0, w1, max_workers=2)
    play.settle(w0, w1)
    play.break_(w0)
    play.arrive(w0, w1, step=7, max_workers=1)  # room for one: w1 stays outside with the same state
    assert play.members == [w0]

    play.exit(w0, step=8)  # it did one more

    assert play.status(w1) == "lost"


def test_before_anybody_held_a_state_nothing_can_be_lost(stage):
    play = stage(start_workers=2)
    w0, w1 = play.add(2)
    play.arrive(w0, w1)
    play.exit(w0)  # in the forming
    play.arrive(w1)

    assert play.members == [w1]
