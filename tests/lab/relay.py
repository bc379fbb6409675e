"""A TCP relay in front of the coordinator that counts a browser's open streams; a tab does not see them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

STREAM = b"GET /v1/stream"


class Relay:
    def __init__(self, port: int) -> None:
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self.streams: set[socket.socket] = set()  # connections that carry one now
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"

    def serve(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                browser, _ = self._server.accept()
                coordinator = socket.create_connection(("127.0.0.1", self._target))
                with self._lock:
                    self._open |= {browser, coordinator}
                self._start(self._copy, browser, coordinator)
                self._start(self._copy, coordinator, browser)

    def _copy(self, source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if data.startswith(STREAM):
                    self.streams.add(source)
                to.sendall(data)
        self.streams -= {source, to}
        for each in (source, to):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _start(self, work: object, *args: socket.socket) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._open:
            each.close()


@contextlib.contextmanager
def relay(port: int) -> Iterator[Relay]:
    made = Relay(port)
    server = threading.Thread(target=made.serve, daemon=True)
    server.start()
    yield made
    made.close()
    server.join()
