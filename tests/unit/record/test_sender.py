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
