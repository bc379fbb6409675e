"""Messages with open files in them, between processes of one machine: one packet each, over a unix socket.

A message is one of our values (wire.py's codec); its files are descriptors that the other side then owns too."""

from __future__ import annotations

import json
import select
import socket
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from everstep.wire import from_json

_MAX_BYTES = 1 << 20
_MAX_FILES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """From the nursery, first of all: it is ready; or, with a problem, it will never be."""

    pid: int
    problem: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepWarm:
    """Stay for so long after the last connection has ended."""

    idle_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StartWorker:
    """Fork a process that runs this command as python would; with two files: its stdout and stderr."""

    request: int
    command: list[str]
    environment: dict[str, str]
    directory: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """With one file, the pidfd; or with a problem, and then nothing was started."""

    request: int
    pid: int = 0
    problem: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """It has ended, but its number stays taken until `Reap`."""

    pid: int
    code: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Reap:
    pid: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CountGpus:
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpus:
    number: int


Message = Hello | KeepWarm | StartWorker | Started | Ended | Reap | CountGpus | Gpus
_KINDS: dict[str, type[Message]] = {
    kind.__name__: kind for kind in (Hello, KeepWarm, StartWorker, Started, Ended, Reap, CountGpus, Gpus)
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Parcel:
    message: Message
    files: list[int] = field(default_factory=list)


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(line: socket.socket, message: Message, files: Sequence[int] = ()) -> None:
    """OSError if the other side is gone, or if the message is larger than a packet may be."""
    body = json.dumps({"kind": type(message).__name__, **asdict(message)}, separators=(",", ":")).encode()
    socket.send_fds(line, [body], list(files), socket.MSG_NOSIGNAL)


def receive(line: socket.socket, timeout_s: float | None = None) -> Parcel | None:
    """The next one. EOFError: the other side is gone. None: nothing came in time."""
    poll = select.poll()
    poll.register(line, select.POLLIN)
    if not poll.poll(None if timeout_s is None else timeout_s * 1000):
        return None
    try:
        body, files, flags, _ = socket.recv_fds(line, _MAX_BYTES, _MAX_FILES, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        raise EOFError from None
    if not body or flags & socket.MSG_TRUNC:
        raise EOFError
    values: dict[str, Any] = json.loads(body)
    return Parcel(message=from_json(_KINDS[values.pop("kind")], values), files=files)


def peer_user(line: socket.socket) -> int:
    """The user at the other end."""
    form = "3i"
    _, user, _ = struct.unpack(form, line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(form)))
    return int(user)
