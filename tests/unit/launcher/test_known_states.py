"""A report lists the workers that changed since the last one that was answered, or all of them."""

from __future__ import annotations

from everstep.ipc.progress_page import WorkerProgress
from everstep.launcher.known_states import KnownStates, Sighting
from everstep.wire import COMPUTING, AgentOrders, AgentReport

REPORT = AgentReport(incarnation="i", node="n", workers=[])
UNDERSTOOD = AgentOrders(kill=[], is_ended=False, reason="")
LOST = AgentOrders(kill=[], is_ended=False, reason="", wants_all=True)
NOW = 100.0


def seen(step=0, *, is_running=True):
    return Sighting(is_running, WorkerProgress(step=step, phase=COMPUTING, since=NOW - 2.0))


def test_only_what_changed_is_listed():
    known = KnownStates()
    first = known.next_report(REPORT, {"w0": seen(1), "w1": seen(1)}, NOW)
    known.answered(UNDERSTOOD)
    second = known.next_report(REPORT, {"w0": seen(1), "w1": seen(2)}, NOW)
    known.answered(UNDERSTOOD)
    third = known.next_report(REPORT, {"w0": seen(1, is_running=False)}, NOW)
    known.answered(UNDERSTOOD)
    fourth = known.next_report(REPORT, {"w0": seen(1, is_running=False)}, NOW)

    listed = [{state.worker: state.is_running for state in each.workers} for each in (first, second, third, fourth)]
    assert listed == [{"w0": True, "w1": True}, {"w1": True}, {"w0": False, "w1": False}, {}]
    assert [(each.number, each.after) for each in (first, second, third, fourth)] == [(1, 0), (2, 1), (3, 2), (4, 3)]
    assert (second.workers[0].step, second.workers[0].phase, second.workers[0].phase_s) == (2, COMPUTING, 2.0)


def test_all_are_listed_after_a_report_that_was_not_answered_or_not_understood():
    known, workers = KnownStates(), {"w0": seen(1)}
    for orders in (None, LOST, UNDERSTOOD):
        report = known.next_report(REPORT, workers, NOW)
        assert (len(report.workers), report.after) == (1, 0)
        if orders is not None:
            known.answered(orders)
    assert known.next_report(REPORT, workers, NOW).workers == []


def test_a_worker_that_writes_no_board_has_no_progress():
    (state,) = KnownStates().next_report(REPORT, {"w0": Sighting(True, WorkerProgress())}, NOW).workers
    assert (state.is_running, state.has_progress, state.phase_s) == (True, False, 0.0)
