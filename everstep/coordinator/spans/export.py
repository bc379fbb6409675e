"""Send spans to an OpenTelemetry collector, from a thread of its own, with OpenTelemetry's own exporter.

The caller never waits: spans stand in a queue of limited length. While the collector is away they are tried again, and
what does not fit into the queue meanwhile is dropped, counted and logged. The exporter takes headers, certificates,
compression and time-outs from OpenTelemetry's standard variables."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import everstep
from everstep import env
from everstep.coordinator.spans.span import TraceSpan
from everstep.errors import UsageError

log = logging.getLogger(__name__)

ENDPOINT, TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
MOST_WAITING = 10_000
MOST_AT_ONCE = 512
_DISABLED = "OTEL_SDK_DISABLED"
_PATH = "/v1/traces"
_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_CLOSE_S = 3.0
_SAID_EVERY_S = 60.0
_MOST_TEXT = 4096  # characters of a fact


class SpanExport:
    def __init__(
        self, exporter: Any, on_sent: Callable[[Sequence[TraceSpan]], None], *, most_waiting: int = MOST_WAITING
    ) -> None:
        """`exporter`: OpenTelemetry's. `on_sent` is called by the thread, with spans that the collector has."""
        self._exporter, self._on_sent = exporter, on_sent
        self._waiting: queue.Queue[TraceSpan] = queue.Queue(most_waiting)
        self._is_closing = threading.Event()
        self._said_at = float("-inf")
        self.num_sent = self.num_dropped = 0
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def offer(self, span: TraceSpan) -> bool:
        """Send it soon. False: too many wait, so it is dropped."""
        try:
            self._waiting.put_nowait(span)
            return True
        except queue.Full:
            self.num_dropped += 1
            self._say(f"{self.num_dropped} spans were dropped so far: the collector takes none, or too slowly")
            return False

    def close(self, patience_s: float = _CLOSE_S) -> None:
        """Send what waits, if that is quick."""
        self._is_closing.set()
        self._thread.join(patience_s)
        self._exporter.shutdown()
        self.num_dropped += self._waiting.qsize()
        if self.num_dropped:
            log.warning("%d spans were dropped in all: the collector did not take them", self.num_dropped)

    def _run(self) -> None:
        make = _Conversion()
        while not (self._is_closing.is_set() and self._waiting.empty()):
            if batch := self._next_batch():
                self._send(batch, [make(each) for each in batch])

    def _next_batch(self) -> list[TraceSpan]:
        try:
            batch = [self._waiting.get(timeout=0.2)]
        except queue.Empty:
            return []
        while len(batch) < MOST_AT_ONCE:
            try:
                batch.append(self._waiting.get_nowait())
            except queue.Empty:
                break
        return batch

    def _send(self, batch: Sequence[TraceSpan], converted: Sequence[Any]) -> None:
        pause_s = _PAUSE_S
        while not self._is_taken(converted):
            self._say("spans wait: the collector does not take them")
            if self._is_closing.wait(pause_s):
                self.num_dropped += len(batch)
                return
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        self.num_sent += len(batch)
        self._on_sent(batch)

    def _is_taken(self, converted: Sequence[Any]) -> bool:
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            return bool(self._exporter.export(converted) == SpanExportResult.SUCCESS)
        except Exception as error:  # of a library: whatever it is, the coordinator continues
            log.debug("spans were not sent: %s", error)
            return False

    def _say(self, line: str) -> None:
        """The first time, and then once a minute."""
        if time.monotonic() >= self._said_at + _SAID_EVERY_S:
            self._said_at = time.monotonic()
            log.warning(line)


def open_exporter(endpoint: str | None) -> Any:
    """OpenTelemetry's exporter; None: nothing asks for it. `endpoint`: default: the standard variables."""
    found = endpoint or env.value(TRACES_ENDPOINT) or env.value(ENDPOINT)
    if found is None or (env.value(_DISABLED) or "").lower() == "true":
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        text, hint = f"spans cannot be sent to OpenTelemetry: {error}", "pip install 'everstep[otel]'"
        if endpoint is not None:
            raise UsageError(text, hint=hint, code="otel-missing") from None
        log.warning("%s; %s, or unset %s", text, hint, ENDPOINT)
        return None
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it would log each try
    return OTLPSpanExporter(endpoint.rstrip("/") + _PATH) if endpoint else OTLPSpanExporter()


class _Conversion:
    """From our spans to OpenTelemetry's."""

    def __init__(self) -> None:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self._resource = Resource.create()
        if str(self._resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
            self._resource = self._resource.merge(Resource({SERVICE_NAME: "everstep"}))
        self._scope = InstrumentationScope("everstep", everstep.__version__)

    def __call__(self, span: TraceSpan) -> Any:
        from opentelemetry.sdk.trace import Event, ReadableSpan
        from opentelemetry.trace import Status, StatusCode

        events = [Event(each.name, attributes=_short(each.facts), timestamp=_ns(each.time)) for each in span.events]
        return ReadableSpan(
            name=span.name,
            context=_context(span.trace, span.id),
            parent=None if span.parent is None else _context(span.trace, span.parent),
            resource=self._resource,
            attributes=_short(span.facts),
            events=events,
            status=Status(StatusCode.ERROR, span.problem[:_MOST_TEXT]) if span.problem else Status(StatusCode.UNSET),
            start_time=_ns(span.start),
            end_time=_ns(max(span.start, span.end)),
            instrumentation_scope=self._scope,
        )


def _context(trace: int, span: int) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(trace, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _short(facts: Any) -> dict[str, Any]:
    return {
        name: value[:_MOST_TEXT] if isinstance(value, str) else value for name, value in facts.items() if value != ""
    }


def _ns(time_s: float) -> int:
    return round(time_s * 1e9)
