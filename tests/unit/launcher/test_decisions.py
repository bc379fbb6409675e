"""Who is replaced, how a job went, and what is said about it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from everstep.launcher.decisions import JobEnd, Verdict, WorkerEnd, decide_replacement, decide_verdict, whom_we_wait_for
from everstep.launcher.summary import LastWords, failure_report, last_line, summary
from everstep.process import Exit
from everstep.wire import JobView, NodeView, WorkerView

GOOD, BAD, KILLED = Exit(code=0), Exit(code=1), Exit(code=-9)


@pytest.mark.parametrize(
    ("ended", "is_ending", "is_regrouping", "is_replaced"),
    [
        (GOOD, False, True, False),
        (KILLED, False, True, True),
        (BAD, False, True, True),
        (KILLED, True, True, False),
        (KILLED, False, False, False),  # all are restarted together
    ],
)
def test_who_is_replaced(ended: Exit, is_ending: bool, is_regrouping: bool, is_replaced: bool) -> None:
    assert decide_replacement(ended, is_ending=is_ending, is_regrouping=is_regrouping).is_replaced == is_replaced


def ends(*exits: Exit) -> list[WorkerEnd]:
    return [WorkerEnd(worker=f"w{number}", exit=exit) for number, exit in enumerate(exits)]


@pytest.mark.parametrize(
    ("exits", "outlived", "exit_code", "first"),
    [
        ([GOOD, GOOD], "", 0, None),
        ([KILLED, GOOD], "w0", 0, None),  # the job went on without it
        ([GOOD, KILLED], "w1", 0, None),
        ([GOOD, KILLED], "", 1, "w1"),  # it was killed when all had agreed on the end
        ([GOOD, BAD], "", 1, "w1"),
        ([BAD, GOOD], "", 1, "w0"),
        ([GOOD, KILLED, BAD], "w1", 1, "w2"),
        ([BAD, BAD], "", 1, "w0"),
        ([], "", 1, None),
    ],
)
def test_how_a_job_went(exits: list[Exit], outlived: str, exit_code: int, first: str | None) -> None:
    verdict = decide_verdict(ends(*exits), JobEnd(outlived=frozenset({outlived})), signal_number=None)
    assert verdict.exit_code == exit_code
    assert (verdict.first_failure.worker if verdict.first_failure else None) == first


def in_any_order(*ends: WorkerEnd, outlived: str = "") -> Verdict:
    """How a finished job went, whatever was seen first."""
    job = JobEnd(is_finished=True, outlived=frozenset({outlived}))
    (verdict,) = {decide_verdict(order, job, signal_number=None) for order in itertools.permutations(ends)}
    return verdict


def test_who_came_too_late_for_a_finished_job_did_not_fail() -> None:
    late = WorkerEnd(worker="w2", exit=BAD, step=0)
    dismissed = WorkerEnd(worker="w3", exit=Exit(code=-15), was_asked=True)
    finished = WorkerEnd(worker="w0", exit=GOOD, step=9)
    assert in_any_order(finished, late, dismissed) == Verdict(exit_code=0, code="finished", reason="finished")
    assert in_any_order(late).exit_code == 0
    assert decide_verdict([late], JobEnd(), signal_number=None).exit_code == 1


def test_who_failed_before_the_others_last_step_was_survived() -> None:
    finished = [WorkerEnd(worker=worker, exit=GOOD, step=9) for worker in ("w0", "w2")]
    for exit in (BAD, KILLED):
        failed = WorkerEnd(worker="w1", exit=exit, step=8)
        assert in_any_order(failed, *finished) == Verdict(
            exit_code=0, code="finished", reason="finished", num_survived=1
        )


def test_an_exception_of_the_script_is_no_success_unless_a_restart_was_allowed_for_it() -> None:
    finished = WorkerEnd(worker="w0", exit=GOOD, step=9)
    raised = WorkerEnd(worker="w1", exit=BAD, step=8, has_raised=True)
    verdict = in_any_order(finished, raised)
    assert (verdict.exit_code, verdict.first_failure) == (1, raised)
    assert verdict.code == "script-raised"
    assert "the others finished without it" in verdict.reason
    assert in_any_order(finished, replace(raised, step=0)).reason == verdict.reason  # in its first step
    elsewhere = JobEnd(is_finished=True, released=frozenset({"w0"}))  # this node has no other worker
    assert decide_verdict([raised], elsewhere, signal_number=None).reason == verdict.reason
    assert in_any_order(finished, replace(raised, is_replaceable=True)).exit_code == 0
    assert "continued without it" in decide_verdict([finished, raised], JobEnd(), signal_number=None).reason


def test_the_first_to_fail_is_the_one_that_the_reason_names_or_whose_own_script_failed() -> None:
    followed, raised, named = (WorkerEnd(worker=f"w{number}", exit=BAD, step=5) for number in (3, 2, 0))
    raised = replace(raised, has_raised=True)

    def first(reason: str) -> str:
        order = itertools.permutations([followed, raised, named])
        (worker,) = {_first(ends, reason) for ends in order}
        return worker

    def _first(ends: Sequence[WorkerEnd], reason: str) -> str:
        failure = decide_verdict(ends, JobEnd(stop_reason=reason), signal_number=None).first_failure
        return failure.worker if failure else ""

    assert first("w0: UsageError: wrong") == "w0"
    assert first("micro-batch 2 of step 3 killed 3 workers") == "w2"


def test_who_failed_after_the_last_step_did_fail() -> None:
    failed = WorkerEnd(worker="w1", exit=BAD, step=9)
    finished = WorkerEnd(worker="w0", exit=GOOD, step=9)
    verdict = in_any_order(finished, failed, outlived="w1")
    assert (verdict.first_failure, verdict.code) == (failed, "failed-after-last-step")


def test_who_was_killed_after_the_last_step_is_named_and_nothing_is_missing() -> None:
    killed = WorkerEnd(worker="w1", exit=KILLED, step=9)
    finished = WorkerEnd(worker="w0", exit=GOOD, step=9)
    verdict = in_any_order(finished, killed, outlived="w1")
    assert (verdict.exit_code, verdict.unfinished) == (0, ("w1",))
    told = summary(verdict, num_steps=9, elapsed_s=4.0, good_s=None)
    assert told == "finished: 9 steps in 4.0 s, 1 death survived, w1 killed after the last step"


def test_rank_0_killed_after_the_last_step_may_leave_something_undone() -> None:
    killed = WorkerEnd(worker="w0", exit=KILLED, step=9)
    finished = WorkerEnd(worker="w1", exit=GOOD, step=9)
    job = JobEnd(is_finished=True, outlived=frozenset({"w0"}), chiefs=frozenset({"w0"}), released=frozenset({"w1"}))
    verdict = decide_verdict([finished, killed], job, signal_number=None)
    assert (verdict.exit_code, verdict.first_failure) == (1, killed)
    assert verdict.code == "rank-0-killed-after-last-step"
    shared = dataclasses.replace(killed, is_shared=True)  # as in a trial's fit: the others do it again
    assert decide_verdict([finished, shared], job, signal_number=None).exit_code == 0


@pytest.mark.parametrize("worker", ["w0", "w1"])
def test_whoever_was_killed_when_its_script_had_ended_has_done_all(worker: str) -> None:
    ends = [WorkerEnd(worker=name, exit=KILLED if name == worker else GOOD, step=9) for name in ("w0", "w1")]
    job = JobEnd(is_finished=True, released=frozenset({"w0", "w1"}))
    verdict = decide_verdict(ends, job, signal_number=None)
    assert (verdict.exit_code, verdict.unfinished) == (0, (worker,))
    alone = [end for end in ends if end.worker == worker]  # on its node
    assert decide_verdict(alone, job, signal_number=None).exit_code == 0


def test_who_was_killed_after_the_last_step_did_fail_if_nobody_knows_how_far_it_came() -> None:
    killed = WorkerEnd(worker="w1", exit=KILLED, step=9)
    finished = WorkerEnd(worker="w0", exit=GOOD, step=9)
    assert in_any_order(finished, killed).first_failure == killed


def test_a_death_that_was_survived_is_not_the_one_to_look_at() -> None:
    survived = WorkerEnd(worker="w1", exit=KILLED, step=3)
    others = [WorkerEnd(worker=worker, exit=BAD, step=9) for worker in ("w2", "w0")]
    assert decide_verdict([survived, *others], JobEnd(), signal_number=None).first_failure == others[0]


def test_a_worker_that_was_asked_to_end_is_not_the_one_to_look_at() -> None:
    asked, failed = WorkerEnd(worker="w0", exit=Exit(code=-15), was_asked=True), WorkerEnd(worker="w1", exit=BAD)
    stopped = JobEnd(stop_reason="w7 died elsewhere")
    assert decide_verdict([asked], stopped, signal_number=None).first_failure is None
    assert decide_verdict([asked, failed], stopped, signal_number=None).first_failure == failed


def test_a_stopped_job_failed_whatever_its_workers_returned() -> None:
    verdict = decide_verdict(ends(GOOD), JobEnd(stop_reason="micro-batch 3 killed 3 workers"), signal_number=None)
    assert verdict.exit_code == 1


def test_an_interrupted_job_ends_as_a_shell_would() -> None:
    verdict = decide_verdict(ends(BAD), JobEnd(), signal_number=2)
    assert verdict.exit_code == 130
    assert failure_report(verdict, None) == ["stopped by SIGINT"]


def test_the_failure_report_names_worker_signal_step_and_micro_batch() -> None:
    end = WorkerEnd(worker="w1", exit=KILLED, step=7, micro_batch=3)
    verdict = decide_verdict([end], JobEnd(stop_reason="micro-batch 3 killed 3 workers"), signal_number=None)
    words = LastWords(directory="/d/w1", stdout=["one"], stderr=["two", "three"], error="ValueError: bad")
    assert failure_report(verdict, words) == [
        "first to fail: w1, killed by SIGKILL in micro-batch 3 after step 7",
        "  error: ValueError: bad",
        "  last lines of /d/w1/stdout.log:",
        "  | one",
        "  last lines of /d/w1/stderr.log:",
        "  | two",
        "  | three",
        "the job failed: micro-batch 3 killed 3 workers",
    ]


def test_a_script_that_knows_no_steps_failed_without_one() -> None:
    verdict = Verdict(
        exit_code=1, code="no-worker-left", reason="no worker is left", first_failure=WorkerEnd(worker="w0", exit=BAD)
    )
    assert failure_report(verdict, LastWords(directory="/d/w0")) == [
        "first to fail: w0, exit code 1",
        "  it printed nothing (/d/w0)",
        "the job failed: no worker is left",
    ]


TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in <module>',
    "    load(it)",
    "x.Mismatch: does not fit:",
    "\tsize mismatch",
    "  HINT: load another",
]


@pytest.mark.parametrize(
    ("end", "words", "line"),
    [
        (BAD, {"stderr": ["Traceback", "  open(path)", "FileNotFoundError: x", ""]}, "w5: FileNotFoundError: x"),
        (BAD, {"stderr": TRACEBACK}, "w5: x.Mismatch: does not fit:"),
        (BAD, {"stderr": [f"[rank0]: {line}" for line in TRACEBACK]}, "w5: x.Mismatch: does not fit:"),
        (BAD, {"stderr": ["a warning"], "error": "ValueError: recorded"}, "w5: ValueError: recorded"),
        (KILLED, {"stderr": ["a warning"]}, "w5: killed by SIGKILL"),
        (BAD, {}, "w5: exit code 1"),
    ],
)
def test_a_failure_in_one_line(end: Exit, words: dict[str, Any], line: str) -> None:
    first = WorkerEnd(worker="w5", exit=end)
    verdict = Verdict(exit_code=1, code="no-worker-left", reason="no worker is left", first_failure=first)
    assert last_line(verdict, LastWords(directory="/d/w5", **words)) == line


def test_the_summary_of_a_good_end() -> None:
    good = Verdict(exit_code=0, code="finished", reason="finished", num_survived=1)
    told = summary(good, num_steps=30, elapsed_s=12.0, good_s=9.0)
    assert told == "finished: 30 steps in 12.0 s, goodput 75%, 1 death survived"
    assert summary(good, num_steps=0, elapsed_s=2.0, good_s=None) == "finished in 2.0 s, 1 death survived"


def test_whom_a_node_waits_for() -> None:
    statuses = {"w0": ("left", "a"), "w1": ("starting", "b"), "w2": ("dead", "b"), "w3": ("starting", "gone")}
    going_on = JobView(
        job="j",
        generation=0,
        is_closed=False,
        is_stopped=False,
        is_finished=False,
        reason="",
        workers=[
            WorkerView(worker=worker, status=status, agent=agent, reason="", pid=0, step=0, generation=0, rank=-1)
            for worker, (status, agent) in statuses.items()
        ],
        nodes=[
            NodeView(agent=agent, address="", num_workers=1, is_present=agent != "gone", node_rank=0, reason="")
            for agent in ("a", "b", "gone")
        ],
    )
    finished = replace(going_on, is_finished=True)

    def said(view: JobView, *, since_s: float = 5.0, is_regrouping: bool = False, **running: int) -> str:
        return whom_we_wait_for(view, agent="a", running=running, is_regrouping=is_regrouping, since_s=since_s)

    assert said(going_on) == "waiting for w1 on b to end"
    assert said(going_on, w4=77) == "waiting for w4 (pid 77), w1 on b to end"
    assert said(going_on, since_s=4.9) == ""
    assert said(going_on, is_regrouping=True, w4=77) == ""  # it trains on
    assert said(finished, is_regrouping=True, w4=77) == "waiting for w4 (pid 77) to end"
    assert said(finished) == ""
