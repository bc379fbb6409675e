"""Where a worker accepts a state: a listener, and a key that the sender has to know. Both are in the worker's hello, so
the sender can connect at once."""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
from typing import Any

from everstep.addresses import listen
from everstep.engine.group import Group
from everstep.errors import PeerLost

_CONNECT_S = 10.0
_KEY_BYTES = 16


class Inlet:
    """Use it in a `with` block, until the state has arrived or none is to come."""

    def __init__(self, address: str) -> None:
        self._socket = listen(address)
        self._socket.settimeout(None)  # whatever the script has set for all sockets
        self._key = secrets.token_bytes(_KEY_BYTES)
        self.card: list[Any] = [address, self._socket.getsockname()[1], self._key.hex()]

    def __enter__(self) -> Inlet:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def accept(self, group: Group) -> socket.socket:
        """The sender's connection; strangers may connect here too. PeerLost when a peer ends before that."""
        waiting = group.ends()
        waiting.register(self._socket, select.POLLIN)
        while True:
            if any(descriptor != self._socket.fileno() for descriptor, _ in waiting.poll()):
                raise PeerLost("a peer has ended before the state arrived", code="state-not-begun")
            sock, _ = self._socket.accept()
            sock.settimeout(_CONNECT_S)
            with contextlib.suppress(OSError):
                if secrets.compare_digest(_key(sock), self._key):
                    sock.settimeout(None)
                    return sock
            sock.close()


def _key(sock: socket.socket) -> bytes:
    key = b""
    while len(key) < _KEY_BYTES and (more := sock.recv(_KEY_BYTES - len(key))):
        key += more
    return key


def connect(card: list[Any]) -> socket.socket:
    address, port, key = card
    sock = socket.create_connection((address, port), _CONNECT_S)
    sock.settimeout(None)
    sock.sendall(bytes.fromhex(key))
    return sock
