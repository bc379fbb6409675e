"""A collector for OpenTelemetry: an HTTP server that decodes what it gets with the package's own messages."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATH = "/v1/traces"


@dataclass(frozen=True, kw_only=True, slots=True)
class GotSpan:
    trace: str
    id: str
    parent: str  # "" if none
    name: str
    start_s: float
    end_s: float
    facts: dict[str, Any]
    events: tuple[str, ...]
    is_error: bool
    service: str

    @property
    def key(self) -> tuple[str, ...]:
        """What it is about: two of one key with different IDs would be one thing exported twice."""
        words = ("experiment", "trial", "job", "generation", "checkpoint", "length")
        return (self.name, *(str(self.facts.get(f"everstep.{word}", "")) for word in words))


class SpanCollector:
    """`is_open`: whether it takes what it gets; else it answers 503, and keeps nothing."""

    def __init__(self) -> None:
        self.spans: list[GotSpan] = []
        self.headers: list[dict[str, str]] = []
        self.is_open, self.num_refused = True, 0
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status = 200 if collector.is_open and self.path == PATH else 503
                if status == 200:
                    collector.headers.append({name.lower(): value for name, value in self.headers.items()})
                    collector.spans += decoded(body)
                else:
                    collector.num_refused += 1
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_words: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def decoded(body: bytes) -> Sequence[GotSpan]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    found = []
    for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        service = _facts(of_resource.resource.attributes)["service.name"]
        for each in (span for scope in of_resource.scope_spans for span in scope.spans):
            found.append(
                GotSpan(
                    trace=each.trace_id.hex(),
                    id=each.span_id.hex(),
                    parent=each.parent_span_id.hex(),
                    name=each.name,
                    start_s=each.start_time_unix_nano / 1e9,
                    end_s=each.end_time_unix_nano / 1e9,
                    facts=_facts(each.attributes),
                    events=tuple(event.name for event in each.events),
                    is_error=each.status.code == 2,
                    service=service,
                )
            )
    return found


def _facts(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
