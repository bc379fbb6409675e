"""What all workers decide alike: from the same headers, pulses and hellos."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.engine.backend import BackendFacts
from everstep.engine.leadership import MemberHello, check_fit, decide_leader
from everstep.engine.pulse import STEPS, DataPlace, Header, Pulse, decide_pulse, total_weight
from everstep.errors import PeerLost, PermanentError, StateMismatch

HELLO = MemberHello(
    worker="w0", job="j", settled=3, step=7, is_dirty=False, is_unfinished=False, layout="abc", num_micro_batches=4,
    is_exact=True, torch="2", held=[], answers={}, is_agreeing=False, neighbors=[], inlet=[],
    backend=BackendFacts(worker="w0", wish="auto", device="cpu"),
)  # fmt: skip


def header(step: int, *weights: float) -> Header:
    return Header(generation=2, step=step, kind=STEPS, weights=weights)


def pulse(*, wants_regroup: bool = False, is_leaving: bool = False, used: bytes = b"\0\0") -> Pulse:
    return Pulse(generation=1, step=1, wants_regroup=wants_regroup, is_leaving=is_leaving, used=used)


def test_headers_and_pulses_survive_the_wire() -> None:
    sent, beat = header(5, 1.0, -1.0, 0.25), pulse(is_leaving=True, used=b"\0\1")

    assert Header.unpack(sent.pack()) == sent
    assert Pulse.unpack(beat.pack()) == beat


def test_weights_are_summed_over_all_owners() -> None:
    assert total_weight([header(5, 1.0, -1.0, 0.0), header(5, -1.0, 2.5, -1.0)]) == 3.5


@pytest.mark.parametrize("other", [header(5, 1.0, -1.0), header(5, -1.0, -1.0), header(6, -1.0, 1.0)])
def test_a_micro_batch_without_exactly_one_owner_or_another_step_is_an_error(other: Header) -> None:
    with pytest.raises(StateMismatch):
        total_weight([header(5, 1.0, -1.0), other])


def test_a_header_of_an_earlier_generation_is_an_error() -> None:
    with pytest.raises(StateMismatch, match="rank 1 is at step 5 of generation 1, rank 0 at step 5 of generation 2"):
        total_weight([header(5, 1.0, -1.0), replace(header(5, -1.0, 1.0), generation=1)])


def test_workers_that_train_on_other_data_in_the_same_step_are_an_error() -> None:
    here, there = replace(header(5, 1.0, -1.0), place=DataPlace(1, 0, 12)), header(5, -1.0, 1.0)
    with pytest.raises(StateMismatch, match="rank 1 trains on samples 60 to 72 of epoch 0, rank 0 on samples 0 to 12"):
        total_weight([here, replace(there, place=DataPlace(0, 60, 12))])


def test_one_wish_makes_all_regroup() -> None:
    assert not decide_pulse([pulse(), pulse()], 2.0).must_regroup
    assert decide_pulse([pulse(), pulse(wants_regroup=True)], 2.0).must_regroup
    assert decide_pulse([pulse(), pulse(is_leaving=True)], 2.0).leavers == (1,)


def test_one_that_leaves_makes_all_regroup_without_it() -> None:
    decision = decide_pulse([pulse(), pulse(is_leaving=True)], 2.0)

    assert (decision.must_regroup, decision.leavers) == (True, (1,))


def test_a_parameter_is_used_if_anybody_used_it() -> None:
    assert decide_pulse([pulse(used=b"\0\1"), pulse(used=b"\0\0")], 2.0).used == b"\0\1"


def test_a_member_of_another_job_is_no_peer() -> None:
    for rank in (0, 1):
        with pytest.raises(PeerLost, match="of job"):
            check_fit([HELLO, replace(HELLO, worker="w1", job="another")], leader=0, rank=rank)


def test_nothing_is_sent_where_all_stand_at_the_same_step() -> None:
    assert decide_leader([HELLO, replace(HELLO, worker="w1")], continues=3).receivers == ()


def test_the_most_advanced_leads_and_laggards_and_newcomers_receive() -> None:
    hellos = [HELLO, replace(HELLO, worker="w1", step=8), replace(HELLO, worker="w2", settled=0, step=0)]

    leadership = decide_leader(hellos, continues=3)

    assert (leadership.leader, leadership.receivers) == (1, (0, 2))


def test_one_that_missed_a_generation_never_leads_however_far_it_is() -> None:
    assert decide_leader([replace(HELLO, settled=2, step=99), HELLO], continues=3).leader == 1


def test_a_dirty_one_never_leads() -> None:
    assert decide_leader([replace(HELLO, is_dirty=True), HELLO], continues=3).leader == 1
    with pytest.raises(PermanentError, match="broke off"):
        decide_leader([replace(HELLO, is_dirty=True)], continues=3)


def test_one_whose_body_broke_off_after_the_commit_gets_the_state_of_the_others() -> None:
    unfinished = replace(HELLO, step=8, is_unfinished=True)
    for step in (7, 8):  # it may be a step ahead of them: that one is done again
        leadership = decide_leader([unfinished, replace(HELLO, worker="w1", step=step)], continues=3)
        assert (leadership.leader, leadership.receivers) == (1, (0,))


def test_where_every_body_broke_off_after_the_commit_one_state_is_everybodys() -> None:
    leadership = decide_leader([replace(HELLO, is_unfinished=True)] * 2, continues=3)
    assert (leadership.leader, leadership.receivers) == (0, (1,))


def test_survivors_differ_by_one_step_at_most() -> None:
    with pytest.raises(StateMismatch, match="one step at most"):
        decide_leader([HELLO, replace(HELLO, step=9)], continues=3)


def test_nobody_who_holds_the_state_is_an_error() -> None:
    with pytest.raises(PermanentError, match="generation 4"):
        decide_leader([HELLO], continues=4)


def test_who_is_built_differently_goes_and_the_others_wait_for_it() -> None:
    hellos = [HELLO, replace(HELLO, worker="w1", layout="xyz")]

    with pytest.raises(StateMismatch, match="w1 does not fit w0: layout: xyz against abc"):
        check_fit(hellos, leader=0, rank=1)
    with pytest.raises(PeerLost):
        check_fit(hellos, leader=0, rank=0)
