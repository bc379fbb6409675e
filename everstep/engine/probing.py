"""Which workers can reach each other: each accepts connections on a port of its own, and ends them at once."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time

from everstep.addresses import family_of, listen

PROBE_S = 1.0  # a peer that does not accept a connection within this time cannot be reached


class ProbeListener:
    def __init__(self, address: str) -> None:
        self._socket = listen(address, backlog=512)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]

    def answer(self) -> None:
        """End the connections that have come since the last call."""
        with contextlib.suppress(BlockingIOError, OSError):
            while True:
                self._socket.accept()[0].close()

    def close(self) -> None:
        self._socket.close()


def reachable(targets: dict[str, tuple[str, int]], within_s: float = PROBE_S) -> set[str]:
    """Connect to all at once; those that have accepted by the deadline are reachable."""
    reached: set[str] = set()
    deadline = time.monotonic() + within_s
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
        for name, target in targets.items():
            sock = stack.enter_context(socket.socket(family_of(target[0])))
            sock.setblocking(False)
            try:
                sock.connect_ex(target)
            except OSError:  # a name that cannot be resolved now
                continue
            selector.register(sock, selectors.EVENT_WRITE, name)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                sock = key.fileobj  # type: ignore[assignment]
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    reached.add(key.data)
                selector.unregister(sock)
    return reached
