"""Spans wait in a queue of limited length: who offers one never waits, and what does not fit is counted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from everstep.coordinator.spans import export
from everstep.coordinator.spans.export import SpanExport, open_exporter
from everstep.coordinator.spans.span import TraceSpan
from everstep.errors import UsageError
from lab.command import until

sdk = pytest.importorskip("opentelemetry.sdk.trace.export")


class Collector:
    """OpenTelemetry's exporter, with a collector behind it that can be held."""

    def __init__(self) -> None:
        self.took: list[str] = []
        self.is_free, self.is_good, self.num_calls = threading.Event(), True, 0

    def export(self, spans: Sequence[Any]) -> Any:
        self.num_calls += 1
        assert self.is_free.wait(60)
        if not self.is_good:
            return sdk.SpanExportResult.FAILURE
        self.took += [each.name for each in spans]
        return sdk.SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self.is_free.set()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.is_free.set()


def span(number: int) -> TraceSpan:
    return TraceSpan(subject="job", trace=1, id=number + 1, parent=None, name=str(number), start=1.0, end=2.0)


def test_a_collector_that_hangs_holds_up_no_one_and_the_rest_is_dropped_and_counted(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[TraceSpan] = []
    exporting = SpanExport(collector, sent.extend, most_waiting=10)
    assert exporting.offer(span(0))
    until(lambda: collector.num_calls)
    taken = [exporting.offer(span(number)) for number in range(1, 31)]
    assert taken == [True] * 10 + [False] * 20
    assert exporting.num_dropped == 20
    assert [each.message for each in caplog.records if each.levelno == logging.WARNING] == [
        "1 spans were dropped so far: the collector takes none, or too slowly"
    ], "once a minute"
    collector.is_free.set()
    until(lambda: len(sent) == 11)
    assert collector.took == [str(number) for number in range(11)]
    exporting.close()
    assert exporting.num_sent == 11


def test_what_the_collector_refuses_is_tried_again(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_PAUSE_S", 0.01)
    collector.is_good = False
    collector.is_free.set()
    exporting = SpanExport(collector, lambda _spans: None)
    exporting.offer(span(0))
    until(lambda: collector.num_calls > 2)
    collector.is_good = True
    until(lambda: exporting.num_sent == 1)
    assert (collector.took, exporting.num_dropped) == (["0"], 0)
    exporting.close()


def test_the_end_does_not_wait_for_a_collector_that_is_away(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.is_good = False
    collector.is_free.set()
    exporting = SpanExport(collector, lambda _spans: None)
    exporting.offer(span(0))
    until(lambda: collector.num_calls)
    exporting.close()
    assert exporting.num_dropped == 1
    assert "1 spans were dropped in all" in caplog.text


def test_it_is_off_unless_something_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (export.ENDPOINT, export.TRACES_ENDPOINT):
        monkeypatch.delenv(name, raising=False)
    assert open_exporter(None) is None
    assert open_exporter("http://127.0.0.1:4318/")._endpoint == "http://127.0.0.1:4318/v1/traces"
    monkeypatch.setenv(export.ENDPOINT, "http://127.0.0.1:4319")
    assert open_exporter(None)._endpoint == "http://127.0.0.1:4319/v1/traces"


def test_without_the_package_the_way_out_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(UsageError) as refused:
        open_exporter("http://127.0.0.1:4318")
    assert refused.value.code == "otel-missing" and "everstep[otel]" in str(refused.value)
    monkeypatch.setenv(export.ENDPOINT, "http://127.0.0.1:4318")
    assert open_exporter(None) is None, "a variable is for all programs: the coordinator serves without"
    assert "everstep[otel]" in caplog.text
