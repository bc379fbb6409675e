"""Find the sockets of one gloo group, and break them.

A survivor that is not itself talking to the dead peer stays blocked in gloo until the group's time-out, and
neither abort() nor shutdown() of the group wakes it. Shutting its established sockets down does, in 2 ms.
They are distinguished from all other sockets of the process by the ports of gloo's own listeners, and held as
duplicates, so that a descriptor that was closed and given to somebody else is never touched."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator

Endpoint = tuple[str, int]


def listeners() -> set[Endpoint]:
    """Addresses on which this process listens."""
    return {name for sock in _sockets() if _is_listening(sock) and (name := _asked(sock.getsockname)) is not None}


def hold(own: Endpoint | None, peers: set[Endpoint]) -> list[socket.socket]:
    """Duplicates of the established connections accepted at `own` or made to one of `peers`."""
    held = []
    for sock in _sockets():
        local, remote = _asked(sock.getsockname), _asked(sock.getpeername)
        if remote is not None and (local == own or remote in peers):
            # Not sock.dup(): it would make gloo's end blocking, since the mode belongs to the shared description.
            held.append(socket.socket(fileno=os.dup(sock.fileno())))
    return held


def endpoints(address: str, port: int) -> set[Endpoint]:
    """An address by name or number, as sockets report it."""
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    return {(str(name[0]), port) for *_, name in found}


def in_order(endpoint: Endpoint) -> tuple[bytes, int]:
    """A key that orders endpoints of one address family as gloo does: of two, the greater one connects to the other."""
    address, port = endpoint
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.inet_pton(family, address.split("%")[0]), socket.htons(port)


def cut(held: list[socket.socket]) -> None:
    """End the connections for both sides, now. Any operation that waits on them, on either side, gets an error."""
    for sock in held:
        with contextlib.suppress(OSError):  # the peer, or gloo itself, was faster
            sock.shutdown(socket.SHUT_RDWR)


def _sockets() -> Iterator[socket.socket]:
    """Every internet stream socket of the process, each as a duplicate that lives until the next one."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile, or not a socket
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as sock:
                if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM:
                    yield sock


def _is_listening(sock: socket.socket) -> bool:
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _asked(ask: Callable[[], tuple[str, int] | tuple[str, int, int, int]]) -> Endpoint | None:
    """One end's address; None: there is none, or no more."""
    try:
        name = ask()
    except OSError:
        return None
    return name[0].removeprefix("::ffff:"), name[1]
