"""A receiver of webhooks: a real HTTP server on loopback that remembers what it got and answers as it is told."""

from __future__ import annotations

import contextlib
import hmac
import json
import ssl
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from everstep import wire
from lab.command import until


def allowing(*hosts: str, give_up_s: float = 86_400.0) -> str:
    """What a coordinator's process does first, so that webhooks may call these hosts, and try again soon."""
    return f"""
import functools
from everstep.coordinator.edge import server as edge
from everstep.coordinator.webhooks import attempts
attempts.FIRST_PAUSE_S, attempts.LONGEST_PAUSE_S, attempts.GIVE_UP_S = 0.05, 0.2, {give_up_s}
edge.serve = functools.partial(edge.serve, webhook_hosts={list(hosts)!r})
"""


@dataclass(frozen=True)
class Received:
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["X-Everstep-Delivery"]

    @property
    def event(self) -> Any:
        return json.loads(self.body)

    def is_signed_by(self, secret: str) -> bool:
        timestamp = self.headers["X-Everstep-Timestamp"]
        expected = hmac.new(secret.encode(), timestamp.encode() + b"," + self.body, "sha256").hexdigest()
        return hmac.compare_digest(expected, self.headers["X-Everstep-Signature"])


Reply = Callable[[BaseHTTPRequestHandler, int], None]  # with the number of the request, from 1


def status(code: int, body: bytes = b"", **headers: str) -> Reply:
    def reply(handler: BaseHTTPRequestHandler, _number: int) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return reply


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # its end waits for them

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A coordinator that has read enough hangs up."""


class WebhookReceiver:
    def __init__(self, reply: Reply | None = None, *, tls: tuple[Path, Path] | None = None) -> None:
        self.received: list[Received] = []
        self.reply = reply or status(200, b"thanks")
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.received.append(Received(self.path, dict(self.headers.items()), body))
                with contextlib.suppress(ConnectionError):
                    receiver.reply(self, len(receiver.received))

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = _Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.scheme = "http" if tls is None else "https"
        self.port = self._server.server_port
        self.host = f"http://127.0.0.1:{self.port}" if tls is None else f"127.0.0.1:{self.port}"  # as it is allowed
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def new(self, name: str, *triggers: str, path: str = "/hook", **more: Any) -> wire.NewWebhook:
        """A webhook that calls this receiver."""
        return wire.NewWebhook(
            request=uuid.uuid4().hex, name=name, url=self.url(path), triggers=list(triggers), **more
        )  # fmt: skip

    def url(self, path: str = "/hook") -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}{path}"

    def wait(self, number: int) -> list[Received]:
        until(lambda: len(self.received) >= number, lambda: f"{len(self.received)} of {number}: {self.received}")
        return list(self.received)

    def of(self, path: str) -> list[Received]:
        return [each for each in self.received if each.path == path]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> WebhookReceiver:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
