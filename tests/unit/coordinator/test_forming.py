"""When the next generation is formed, and by whom."""

from __future__ import annotations

import pytest

from everstep.coordinator.roster.facts import num_newcomers
from everstep.coordinator.roster.forming import LAST_CALL_S
from everstep.coordinator.roster.replies import why_waiting
from everstep.errors import Refused
from everstep.wire import COMPUTING


def test_the_first_generation_waits_for_start_workers(stage):
    play = stage(start_workers=3)
    w0, w1, w2 = play.add(3)

    play.arrive(w1, w0)
    assert play.generation.number == 0
    assert "2 of 3" in play.reason

    play.arrive(w2)
    assert (play.generation.number, play.members) == (1, [w0, w1, w2])  # ranks by seniority, not by arrival


def test_the_first_generation_starts_with_fewer_after_start_s(stage):
    play = stage(start_workers=3, start_s=60.0)
    w0, w1 = play.add(2)
    play.arrive(w0)
    play.after(30.0, w0, w1)
    play.arrive(w1)
    assert play.next_look == pytest.approx(1060.0)  # counted from the first arrival

    play.after(30.0, w0, w1)

    assert play.members == [w0, w1]


def test_below_min_workers_a_job_waits_however_long(stage):
    play = stage(start_workers=2, min_workers=2, start_s=1.0)
    w0, w1 = play.add(2)
    play.arrive(w0)
    play.after(100.0, w0, w1)
    assert play.generation.number == 0
    assert "at least 2" in play.reason

    play.arrive(w1)
    play.exit(w1)
    play.arrive(w0)
    play.after(100.0, w0)
    assert play.generation.is_closed
    assert "at least 2" in play.reason

    (w2,) = play.add(1)
    play.arrive(w2)
    assert play.members == [w0, w2]


def test_below_the_least_of_a_range_of_nodes_a_job_waits(stage):
    play = stage(start_workers=3, min_nodes=2, max_nodes=3)
    w0, w1 = play.add(2, "a0")
    (w2,) = play.add(1, "a1")
    play.arrive(w0, w1, w2)
    play.settle(w0, w1, w2)
    play.exit(w1)
    play.arrive(w0, w2)
    assert play.members == [w0, w2]  # a worker less, but both nodes
    play.settle(w0, w2)

    play.exit(w2)
    play.arrive(w0)
    play.after(100.0, w0)
    assert play.generation.is_closed
    assert "at least 2 nodes" in play.reason

    (w3,) = play.add(1, "a2")
    play.arrive(w3)
    assert play.members == [w0, w3]


def test_a_plain_number_of_nodes_is_to_begin_with(stage):
    play = stage(start_workers=2, min_nodes=2, max_nodes=2)
    (w0,), (w1,) = play.add(1, "a0"), play.add(1, "a1")
    play.arrive(w0, w1)
    play.settle(w0, w1)
    play.exit(w1)
    play.arrive(w0)

    assert play.members == [w0]


def test_survivors_regroup_at_once_when_all_have_arrived(stage):
    play = stage(start_workers=3)
    w0, w1, w2 = play.add(3)
    play.arrive(w0, w1, w2)
    play.settle(w0, w1, w2)

    play.exit(w1)
    assert play.generation.is_closed
    assert play.generation.reason == "w1 died: killed by SIGKILL"
    play.arrive(w2, step=5)
    assert play.generation.is_closed
    play.arrive(w0, step=5)

    assert (play.generation.number, play.members, play.generation.continues) == (2, [w0, w2], 1)


def test_who_does_not_arrive_in_time_is_lost_and_the_rest_goes_on(stage):
    play = stage(start_workers=3, arrive_s=2.0)
    w0, w1, w2 = play.add(3)
    play.arrive(w0, w1, w2)
    play.exit(w1)
    play.arrive(w0)
    assert play.next_look == pytest.approx(1002.0)

    play.after(2.0, w0, w2)  # w2 is alive, but does not come

    assert play.status(w2) == "lost"
    assert play.members == [w0]


def test_one_that_does_not_come_after_a_closing_in_good_order_is_told_first_and_lost_later(stage):
    play = stage(start_workers=2, arrive_s=2.0)
    w0, w1 = play.add(2)
    play.arrive(w0, w1)
    play.arrive(w0, step=1)
    assert (play.generation.is_closed, play.generation.is_broken) == (True, False)

    play.after(2.0, w0, w1)
    assert play.generation.is_broken
    assert play.generation.reason == "w1 did not come with the others after the last step"
    assert play.status(w1) == "alive"

    play.after(2.0, w0, w1)
    assert play.status(w1) == "lost"


def test_a_worker_inside_a_long_micro_batch_is_awaited(stage):
    play = stage(start_workers=3, arrive_s=2.0, hang_s=60.0)
    w0, w1, w2 = play.add(3)
    play.arrive(w0, w1, w2)
    play.hear(w2, phase=COMPUTING)
    play.exit(w1)
    play.arrive(w0)

    play.after(30.0, w0, w2)
    assert play.status(w2) == "alive"
    assert "waiting for w2" in play.reason

    play.after(30.0, w0, w2)
    assert play.status(w2) == "lost"


def test_a_newcomer_does_not_close_a_generation_but_is_counted(stage):
    play = stage()
    (w0,) = play.add(1)
    play.arrive(w0)
    (w1,) = play.add(1)
    play.arrive(w1)
    assert play.generation.is_open

    play.arrive(w0, step=3)  # at a step boundary, because of the newcomer

    assert play.roster.previous.reason == "w0 arrived for the next generation; 1 newcomer waits"
    assert play.members == [w0, w1]


def test_more_than_max_workers_are_spares_and_survivors_go_first(stage):
    play = stage(start_workers=2, max_workers=2)
    w0, w1, w2, w3 = play.add(4)
    play.arrive(w1, w2)
    play.arrive(w0, w3)
    assert play.members == [w1, w2]

    play.break_(w1)
    play.arrive(w1, w2)
    assert play.members == [w1, w2]  # w0 is more senior, but they survived

    play.exit(w1)
    play.arrive(w2)
    assert play.members == [w0, w2]


def test_the_number_of_micro_batches_limits_a_generation(stage):
    play = stage(start_workers=3)
    w0, w1, w2 = play.add(3)
    play.arrive(w0, w1, w2, max_workers=2)

    assert play.members == [w0, w1]


def test_the_most_advanced_survivor_is_a_member_even_if_there_is_room_for_one_only(stage):
    play = stage(start_workers=2)
    w0, w1 = play.add(2)
    play.arrive(w0, w1)
    play.settle(w0, w1)
    play.break_(w0)
    play.arrive(w0, step=4, max_workers=1)
    play.arrive(w1, step=5, max_workers=1)

    assert play.members == [w1]


def test_workers_that_cannot_reach_each_other_are_not_put_together(stage):
    play = stage(start_workers=3)
    w0, w1, w2 = play.add(3)
    play.arrive(w0, w1, w2)
    play.settle(w0, w1, w2)
    play.break_(w0, must_probe=True)
    play.arrive(w0, w2)
    play.arrive(w1, unreachable=(w0, w2))

    assert play.members == [w0, w2]
    assert w1 in play.generation.left_out


def test_one_that_joins_late_has_a_higher_rank_than_those_that_have_trained(stage):
    play = stage(start_workers=2)
    w0, w1, w2 = play.add(3)
    play.arrive(w0, w2, unreachable=(w1,))
    play.settle(w0, w2)
    play.exit(w0)
    play.arrive(w1, w2)
    assert play.members == [w2, w1]


def test_a_halved_network_is_decided_by_seniority(stage):
    play = stage(start_workers=4)
    w0, w1, w2, w3 = play.add(4)
    play.arrive(w0, w1, w2, w3)
    play.break_(w3)
    play.arrive(w3, w2, unreachable=(w0, w1))
    play.arrive(w1, w0, unreachable=(w2, w3))

    assert play.members == [w0, w1]


def test_newcomers_that_cannot_reach_the_state_do_not_outvote_its_holder(stage):
    play = stage()
    (w0,) = play.add(1)
    play.arrive(w0)
    play.settle(w0)
    newcomers = play.add(3)
    play.arrive(*newcomers, unreachable=(w0,))
    play.arrive(w0, step=1)

    assert play.members == [w0]


def test_a_silent_holder_of_the_state_is_waited_for_until_it_is_dead(stage):
    play = stage(fence_s=600.0)
    (w0,) = play.add(1)
    play.arrive(w0)
    play.settle(w0)
    play.after(3.0)
    assert play.status(w0) == "lost"
    (w1,) = play.add(1)
    play.arrive(w1)
    assert play.generation.is_closed
    assert "w0 cannot be heard and may hold the state of generation 1" in play.reason

    play.exit(w0)

    (w2,) = play.add(1)
    play.arrive(w2)
    assert (play.members, play.generation.continues) == ([w2], 0)
    assert "NO LIVE WORKER HOLDS THE STATE" in play.generation.reason


def test_a_silent_generation_is_over_after_the_fence(stage):
    play = stage(fence_s=600.0)
    (w0,) = play.add(1)
    play.arrive(w0)
    play.settle(w0)
    play.after(3.0)
    (w1,) = play.add(1)
    play.arrive(w1)
    play.after(599.0 + LAST_CALL_S, w1)
    assert play.status(w1) == "alive"

    play.after(1.0, w1)

    assert play.status(w1) == "lost"  # the silent may have saved until now: whoever loaded before is started again
    (w2,) = play.add(1)
    play.arrive(w2)
    assert play.members == [w2]


def test_a_silent_worker_that_comes_back_brings_the_state(stage):
    play = stage()
    (w0,) = play.add(1)
    play.arrive(w0)
    play.settle(w0)
    play.after(3.0)
    (w1,) = play.add(1)
    play.arrive(w1)

    play.arrive(w0, step=7)

    assert (play.members, play.generation.continues) == ([w0, w1], 1)


def test_members_that_never_got_the_state_wait_for_its_lost_holder(stage):
    play = stage()
    (w0,) = play.add(1)
    play.arrive(w0)
    play.settle(w0)
    (w1,) = play.add(1)
    play.arrive(w1)
    play.arrive(w0, step=1)
    assert (play.members, play.generation.continues) == ([w0, w1], 1)

    play.after(3.0, w1)  # w0 froze before it could send the state
    play.arrive(w1)

    assert "w0 cannot be heard and may hold the state of generation 1" in play.reason
    play.arrive(w0, step=1)
    assert play.members == [w0, w1]


def test_a_spare_that_holds_the_same_state_is_enough(stage):
    play = stage(start_workers=2)
    w0, w1 = play.add(2)
    play.arrive(w0, w1, max_workers=2)
    play.settle(w0, w1)
    play.break_(w0)
    play.arrive(w0, w1, max_workers=1)  # room for one: w1 stays outside with the state of generation 1
    assert (play.members, play.generation.continues) == ([w0], 1)

    play.exit(w0)

    assert (play.members, play.generation.continues) == ([w1], 1)


def test_a_new_process_of_a_member_closes_its_generation_and_holds_nothing(stage):
    play = stage(start_workers=2)
    w0, w1 = play.add(2)
    play.arrive(w0, w1)
    play.settle(w0, w1)

    play.announce(w0, "w0-2")

    assert play.generation.is_closed
    assert play.roster.workers[w0].settled == 0
    play.arrive(w1, step=2)
    assert play.members == [w1]  # the new w0 is a newcomer: nobody waits for it


def test_the_rank_that_a_worker_died_as_is_remembered(stage):
    play = stage(start_workers=2)
    w0, w1 = play.add(2)
    play.arrive(w0, w1)
    play.settle(w0, w1)
    play.exit(w0)
    play.arrive(w1)
    play.leave(w1)

    assert [play.roster.workers[name].died_as for name in (w0, w1)] == [0, -1]


def test_a_dead_worker_is_refused(stage):
    play = stage(start_workers=2)
    w0, _ = play.add(2)
    play.exit(w0)

    with pytest.raises(Refused, match="w0 is dead: died: killed by SIGKILL"):
        play.arrive(w0)


def test_asking_again_gives_the_same_answer(stage):
    play = stage(start_workers=2)
    w0, w1 = play.add(2)
    play.arrive(w0)
    before = play.roster
    play.arrive(w0)
    assert play.roster is before

    play.arrive(w1)
    assert play.generation.number == 1


def test_newcomers_are_counted_only_if_they_would_be_let_in(stage):
    play = stage(max_workers=2)
    (w0,) = play.add(1)
    play.arrive(w0)
    assert num_newcomers(play.roster) == 0
    w1, w2 = play.add(2)
    play.arrive(w1, w2)

    assert num_newcomers(play.roster) == 1  # there is room for one


def test_one_that_was_left_out_is_not_counted_as_a_newcomer(stage):
    """Else all would stop at the next step, leave it out again, stop at the next step, and so on."""
    play = stage(start_workers=3)
    w0, w1, w2 = play.add(3)
    play.arrive(w0, w1, unreachable=(w2,))
    play.arrive(w2)
    assert play.members == [w0, w1]

    assert num_newcomers(play.roster) == 0
    assert why_waiting(play.roster, w2) == "w2 cannot reach, or be reached by, all of generation 1"


def test_newcomers_for_whom_there_is_no_room_are_spares(stage):
    play = stage(start_workers=2)
    play.arrive(*play.add(2))
    play.settle("w0", "w1")
    play.arrive(*play.add(2), max_workers=2)
    assert num_newcomers(play.roster) == 0
    assert "a spare waits" in why_waiting(play.roster, "w2")

    play.exit("w1")
    play.arrive("w0", max_workers=2)
    assert play.members == ["w0", "w2"]
