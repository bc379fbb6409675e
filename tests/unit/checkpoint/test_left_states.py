"""What stays in a saver's memory after its workers have ended."""

from __future__ import annotations

from everstep.checkpoint.saver.left_states import LeftMemory, decide_drops


def left(
    size: int, at: float, *, is_written: bool = True, is_writing: bool = False, is_over: bool = False
) -> LeftMemory:
    return LeftMemory(size_bytes=size, left_at=at, is_written=is_written, is_writing=is_writing, is_over=is_over)


def test_all_that_fits_stays() -> None:
    assert decide_drops([left(40, 1.0), left(60, 2.0)], 100) == {}


def test_the_oldest_go_first_until_the_rest_fits() -> None:
    assert list(decide_drops([left(40, 3.0), left(40, 1.0), left(40, 2.0)], 100)) == [1]
    assert list(decide_drops([left(40, 3.0), left(40, 1.0), left(40, 2.0)], 0)) == [1, 2, 0]


def test_a_state_that_is_not_on_storage_stays() -> None:
    assert list(decide_drops([left(90, 1.0, is_written=False), left(90, 2.0, is_writing=True), left(5, 3.0)], 10)) == [
        2
    ]


def test_what_belongs_to_no_one_any_more_goes_at_once() -> None:
    assert list(decide_drops([left(1, 2.0), left(1, 1.0, is_over=True)], 100)) == [1]
    assert decide_drops([left(1, 1.0, is_over=True, is_written=False)], 100) == {}
