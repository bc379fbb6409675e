"""Messages with open files in them, between processes of one machine: one packet each, over a unix socket.

A message is one of our values (wire.py's codec); its files are descriptors that the other side then owns too. Which
messages there are, the two sides agree on: nursery/messages.py, checkpoint/saver/messages.py."""

from __future__ import annotations

import json
import os
import select
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from everstep.wire import from_json

MAX_BYTES = 1 << 20
MAX_FILES = 16


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send_packet(line: socket.socket, message: Any, files: Sequence[int] = ()) -> None:
    """OSError if the other side is gone, or if the message is larger than a packet may be."""
    body = json.dumps({"kind": type(message).__name__, **asdict(message)}, separators=(",", ":")).encode()
    socket.send_fds(line, [body], list(files), socket.MSG_NOSIGNAL)


def receive_packet(
    line: socket.socket, kinds: Mapping[str, type[Any]], timeout_s: float | None = None
) -> tuple[Any, list[int]] | None:
    """The next one and its files. EOFError: the other side is gone. None: nothing came in time."""
    poll = select.poll()
    poll.register(line, select.POLLIN)
    if not poll.poll(None if timeout_s is None else timeout_s * 1000):
        return None
    try:
        body, files, flags, _ = socket.recv_fds(line, MAX_BYTES, MAX_FILES, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        raise EOFError from None
    if not body or flags & socket.MSG_TRUNC:
        raise EOFError
    values: dict[str, Any] = json.loads(body)
    return from_json(kinds[values.pop("kind")], values), files


def peer_user(line: socket.socket) -> int:
    """The user at the other end."""
    return _peer(line)[1]


def peer_process(line: socket.socket) -> int:
    """The number of the process that made the connection."""
    return _peer(line)[0]


def listen(path: Path) -> socket.socket:
    """A socket in this place that only its user may connect to. One that was left there is replaced."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with _short(path) as short:
            path.unlink(missing_ok=True)
            line.bind(short)
        path.chmod(0o600)
        line.listen()
    except BaseException:
        line.close()
        raise
    return line


def connect(path: Path) -> socket.socket:
    """OSError: no process listens there. PermissionError: another user's does."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with _short(path) as short:
            line.connect(short)
        if peer_user(line) != os.geteuid():
            raise PermissionError(f"the socket {path} is another user's")
    except BaseException:
        line.close()
        raise
    return line


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """The same place by a name that fits into a socket's address, which holds 107 bytes."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _peer(line: socket.socket) -> tuple[int, int]:
    form = "3i"
    process, user, _ = struct.unpack(
        form, line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(form))
    )
    return int(process), int(user)
