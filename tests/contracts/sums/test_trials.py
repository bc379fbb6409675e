"""If sums from device to device do not work, all workers use gloo in the same generation, unless the backend was
requested."""

from __future__ import annotations

import pytest

from everstep.engine.step_work import MOST_ERRORS, DeviceRecord
from lab.ranks import Play


@pytest.fixture(scope="module")
def alone(play: Play) -> str:
    """What one worker computes."""
    (told,) = play(1, "train", backend="gloo")
    return told["digest"]


def test_workers_that_request_the_stand_in_use_it_with_the_bits_of_one(play: Play, alone: str) -> None:
    for told in play(3, "train", backend="stand-in"):
        assert told["chosen"] == [[1, "stand-in", "requested"]]
        assert (told["digest"], told["steps"], told["has_link"]) == (alone, 3, True)


def test_by_default_workers_with_gpus_try_nccl_and_keep_it(play: Play, alone: str) -> None:
    for told in play(2, "train"):
        assert told["chosen"] == [[1, "stand-in", "NCCL 2.28.9 on 2 GPUs"]]
        assert (told["digest"], told["has_link"]) == (alone, True)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        ("one number is wrong", "w1: 1 of 262144 numbers differ from their sum over gloo"),
        ("not connected in time", "w0: stand-in: not connected within 0.5 s"),
    ],
)
def test_if_the_trial_fails_all_use_gloo_in_the_same_generation(play: Play, alone: str, harm: str, reason: str) -> None:
    for told in play(3, "train", harm=harm):
        assert told["chosen"] == [[1, "stand-in", "NCCL 2.28.9 on 3 GPUs"], [1, "gloo", reason]]
        assert (told["digest"], told["steps"], told["has_link"]) == (alone, 3, False)


def test_if_the_backend_was_requested_a_failed_trial_is_an_error(play: Play) -> None:
    first, second = play(2, "train", backend="stand-in", harm="one number is wrong")
    assert second["refusal"].startswith("backend-does-not-serve: ")
    for told in (first, second):
        code, message = told["refusal"].split(": ", 1)
        # The first worker sends its state meanwhile: if the second one ends before, the first learns that the job ends.
        assert code in ("backend-does-not-serve", "job-stopped")
        assert message == "backend='stand-in' does not work: w1: 1 of 262144 numbers differ from their sum over gloo"
        assert told["steps"] == 0


def test_after_three_errors_without_a_step_in_between_gloo_is_used(play: Play, alone: str) -> None:
    for told in play(2, "train", harm="each sum fails"):
        assert [each[:2] for each in told["chosen"]] == [
            [1, "stand-in"], [2, "stand-in"], [3, "stand-in"], [4, "gloo"],
        ]  # fmt: skip
        assert told["chosen"][-1][2] == "w1: NCCL failed 3 times: NCCL error: unhandled system error"
        assert (told["digest"], told["steps"]) == (alone, 3)


def test_errors_are_counted_from_the_last_commit_on() -> None:
    record = DeviceRecord()
    for _ in range(MOST_ERRORS - 1):
        record.note_error("w2", "unhandled system error")
    assert record.refusal == ""
    record.num_errors = 0  # as a commit does
    record.note_error("w2", "unhandled system error")
    assert record.refusal == ""


def test_thirty_generations_leave_neither_threads_nor_descriptors_behind(play: Play) -> None:
    for told in play(2, "many generations", number=30):
        before, after = told["found"]
        assert after[0] <= before[0] and after[1] <= before[1], told
        assert told["problems"] == []


def test_under_torchrun_a_death_ends_the_link_although_no_coordinator_reports_it(play: Play) -> None:
    first, dead, last = play(3, "die in a fixed world")
    assert dead is None
    for told in (first, last):
        assert told == {"problem": "", "is_group_broken": False, "error": ""}
