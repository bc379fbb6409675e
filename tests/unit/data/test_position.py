"""How far training has come in the data, and what is done once after each epoch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.data.epoch_order import EpochOrder
from everstep.data.position import Position
from everstep.errors import UsageError


def make_position(size: int = 10, micro_batches: int = 2, batch_size: int = 2, drop_last: bool = False) -> Position:
    position = Position(size=size, seed=3, shuffle=True)
    position.order = EpochOrder(
        size=size, batch_size=batch_size, micro_batches=micro_batches, shuffle=True, seed=3, drop_last=drop_last
    )
    return position


def place(position: Position) -> tuple[int, int]:
    return position.epoch, position.samples


def test_each_commit_takes_a_global_batch_and_the_last_one_turns_to_the_next_epoch() -> None:
    position, seen = make_position(), []
    for _ in range(4):
        position.advance()
        seen.append(place(position))
    assert seen == [(0, 4), (0, 8), (1, 0), (1, 4)]


def test_drop_last_turns_before_a_batch_that_is_not_full() -> None:
    position, seen = make_position(drop_last=True), []
    for _ in range(3):
        position.advance()
        seen.append(place(position))
    assert seen == [(0, 4), (1, 0), (1, 4)]


def test_a_later_epoch_leaves_the_rest_of_this_one_out_and_an_earlier_one_changes_nothing() -> None:
    position = make_position()
    position.advance()
    assert not position.advance_to(0)
    assert place(position) == (0, 4)
    assert position.advance_to(2)
    assert place(position) == (2, 0)
    assert not position.advance_to(1)
    assert place(position) == (2, 0)


@given(size=st.integers(1, 40), before=st.integers(1, 9), after=st.integers(1, 9), commits=st.integers(0, 30))
def test_a_state_goes_on_with_another_number_of_micro_batches_at_the_same_sample(
    size: int, before: int, after: int, commits: int
) -> None:
    saved, loaded = make_position(size, before), make_position(size, after)
    for _ in range(commits):
        saved.advance()
    loaded.load_state_dict(saved.state_dict())
    assert place(loaded) == place(saved)
    rest = loaded.size - loaded.samples
    while loaded.epoch == saved.epoch:
        samples = loaded.order.samples_at(loaded.samples)  # type: ignore[union-attr]
        rest -= samples
        loaded.advance()
    assert rest == 0


def test_an_empty_state_is_a_fresh_start_and_an_end_of_an_epoch_is_the_next_ones_beginning() -> None:
    position = make_position()
    position.advance()
    position.load_state_dict({})
    assert place(position) == (0, 0)
    position.load_state_dict({"epoch": 4, "position": 10})
    assert place(position) == (5, 0)


@pytest.mark.parametrize(("name", "other"), [("size", 11), ("seed", 4), ("shuffle", False)])
def test_a_state_of_other_data_is_refused_with_both_numbers(name: str, other: Any) -> None:
    position = make_position()
    own = position.state_dict()[name]
    with pytest.raises(UsageError, match=f"{name}={other} there, {name}={own} here") as caught:
        position.load_state_dict(position.state_dict() | {name: other})
    assert caught.value.hint


# --- what is done once after each epoch -------------------------------------------------------------------


def after_epoch(position: Position, epoch: int, name: str = "scheduler") -> bool:
    """The loop has left an epoch and calls scheduler.step()."""
    position.last_iterated = epoch
    return position.is_first_after(name)


def test_it_acts_once_after_each_epoch() -> None:
    position = make_position()
    position.expect_after("scheduler")
    assert not position.is_first_after("scheduler"), "before the first epoch"
    assert [after_epoch(position, epoch) for epoch in (0, 0, 1, 2, 2)] == [True, False, True, True, False]


def test_whoever_gets_a_peers_state_does_not_do_again_what_is_in_it() -> None:
    leader, newcomer = make_position(), make_position()
    for position in (leader, newcomer):
        position.expect_after("scheduler")
    leader.advance_to(2)
    assert [after_epoch(leader, epoch) for epoch in (0, 1)] == [True, True]
    newcomer.load_state_dict(leader.state_dict())
    assert [after_epoch(newcomer, epoch) for epoch in (0, 1, 2)] == [False, False, True]


def test_who_is_brought_past_the_epochs_end_does_what_the_leader_had_still_to_do() -> None:
    leader, laggard = make_position(), make_position()
    for position in (leader, laggard):
        position.expect_after("scheduler")
    leader.advance_to(1)  # by the commit of the last step; it was lost before its scheduler's step
    laggard.load_state_dict(leader.state_dict())
    assert after_epoch(laggard, 0)


def test_a_state_without_marks_has_done_what_comes_after_the_epochs_before_it() -> None:
    position = make_position()
    position.expect_after("scheduler")
    position.load_state_dict({"epoch": 2, "position": 4})
    assert not after_epoch(position, 1)
    assert after_epoch(position, 2)


def test_each_scheduler_has_its_own_marks() -> None:
    position = make_position()
    for name in ("scheduler", "scheduler1"):
        position.expect_after(name)
    assert after_epoch(position, 0, "scheduler")
    assert after_epoch(position, 0, "scheduler1")


def test_without_an_order_nothing_can_be_said() -> None:
    with pytest.raises(UsageError, match="not bound to a trainer"):
        Position(size=3, seed=0, shuffle=False).advance()
