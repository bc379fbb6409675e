"""A port that nobody else gets before the story's own program listens there."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_port() -> Iterator[int]:
    """Bound here and not listened on: the kernel gives it to nobody who asks for any port, while a server, which binds
    with SO_REUSEADDR as we do, can have it by its number."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])
