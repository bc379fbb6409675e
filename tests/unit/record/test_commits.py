"""Calls gather for one transaction; too many of them are turned away with the number."""

from __future__ import annotations

import threading

import pytest

from everstep.errors import Refused, TemporaryError
from everstep.record import commits
from everstep.record.commits import CommitThread
from everstep.record.writing import Incoming
from everstep.wire import MetricReport, MetricsKept


def call(num_points):
    return Incoming("job", 0, [MetricReport(step=n, time=1.0, values={"loss": 1.0}) for n in range(num_points)])


class SlowStore:
    """Keeps nothing until it is let go."""

    def __init__(self):
        self.batches, self.has_begun, self.may_end = [], threading.Event(), threading.Event()

    def keep(self, calls):
        self.batches.append([each.num_points for each in calls])
        self.has_begun.set()
        assert self.may_end.wait(60)
        return [MetricsKept(num_points=each.num_points) for each in calls]


def test_calls_gather_while_others_are_kept():
    store = SlowStore()
    thread = CommitThread(store.keep)
    first = thread.submit(call(2))
    assert store.has_begun.wait(60)
    rest = [thread.submit(call(n)) for n in (3, 4)]
    assert not first.done()
    store.may_end.set()
    assert [each.result(60).num_points for each in (first, *rest)] == [2, 3, 4]
    thread.close()
    assert store.batches == [[2], [3, 4]]


def test_a_call_that_comes_alone_does_not_wait_for_others(monkeypatch):
    monkeypatch.setattr(commits, "LINGER_S", 600.0)
    thread = CommitThread(lambda calls: [MetricsKept(num_points=each.num_points) for each in calls])
    assert thread.submit(call(2)).result(60).num_points == 2
    thread.close()


def test_after_a_long_transaction_the_next_one_waits_for_more_calls(monkeypatch):
    monkeypatch.setattr(commits, "LINGER_S", 600.0)
    monkeypatch.setattr(commits, "LINGERS", 1e9)
    store = SlowStore()
    store.may_end.set()
    thread = CommitThread(store.keep)
    thread.submit(call(1)).result(60)
    waiting = [thread.submit(call(n)) for n in (2, commits.ENOUGH_POINTS)]
    assert [each.result(60).num_points for each in waiting] == [2, commits.ENOUGH_POINTS]
    thread.close()
    assert store.batches == [[1], [2, commits.ENOUGH_POINTS]]


def test_while_too_many_points_wait_a_call_is_told_to_come_back(monkeypatch):
    monkeypatch.setattr(commits, "MOST_WAITING", 5)
    store = SlowStore()
    thread = CommitThread(store.keep)
    thread.submit(call(2))
    assert store.has_begun.wait(60)
    waiting = thread.submit(call(4))
    with pytest.raises(TemporaryError, match="4 points of metrics wait for the store; the limit is 5") as refused:
        thread.submit(call(2))
    assert refused.value.code == "metrics-queue-full"
    store.may_end.set()
    thread.close()  # keeps what waits
    assert waiting.result(0).num_points == 4


def test_a_failure_is_that_of_its_calls_and_not_of_later_ones():
    answers = [OSError("full"), [Refused("no")], [MetricsKept(num_points=1)]]

    def keep(_calls):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    thread = CommitThread(keep)
    with pytest.raises(OSError, match="full"):
        thread.submit(call(1)).result(60)
    assert isinstance(thread.submit(call(1)).result(60), Refused)
    assert thread.submit(call(1)).result(60) == MetricsKept(num_points=1)
    thread.close()
