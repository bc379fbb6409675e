"""A worker's reports are sent in the background; those that are lost are counted, whatever their number."""

from __future__ import annotations

import logging
import threading

import pytest

from everstep.client.calls import Coordinator
from everstep.errors import Refused
from everstep.record import sender as sending
from everstep.record.sender import MetricSender
from everstep.wire import MetricReport, MetricReports, MetricsKept


def test_a_long_absence_of_the_coordinator_costs_no_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sending, "MOST_WAITING", 10)
    is_over, is_called = threading.Event(), threading.Event()

    def send(_reports: MetricReports) -> MetricsKept:
        is_called.set()
        is_over.wait()
        raise Refused("not any more", code="test")

    sender = MetricSender(Coordinator("http://127.0.0.1:1", "worker:x", "job"), send)
    sender(MetricReport(step=0, time=1.0))
    assert is_called.wait(60)
    for step in range(1, 5001):
        sender(MetricReport(step=step, time=1.0))
    assert [name for name, value in vars(sender).items() if isinstance(value, list) and len(value) > 10] == []
    is_over.set()
    with caplog.at_level(logging.WARNING):
        sender.close(60.0)

    assert "5001 metric reports did not reach the coordinator: not any more" in caplog.text


def test_reports_soon_after_a_call_share_the_next_one_and_the_end_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sending, "GATHER_S", 3600.0)
    calls: list[list[int]] = []
    is_called = threading.Event()

    def send(reports: MetricReports) -> MetricsKept:
        calls.append([each.step for each in reports.reports])
        is_called.set()
        return MetricsKept(num_points=len(reports.reports))

    sender = MetricSender(Coordinator("http://127.0.0.1:1", "worker:x", "job"), send)
    sender(MetricReport(step=1, time=1.0))
    assert is_called.wait(60)
    for step in (2, 3):
        sender(MetricReport(step=step, time=1.0))
    sender.close(60.0)

    assert calls == [[1], [2, 3]]
