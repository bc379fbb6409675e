"""Messages between an agent and a nursery (ipc/local_socket.py): orders to start workers, and what became of them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from everstep.ipc.local_socket import receive_packet, send_packet


@dataclass(frozen=True, kw_only=True, slots=True)
class NurseryReady:
    """From the nursery, first of all: it is ready; or, with a problem, it will never be."""

    pid: int
    problem: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepWarm:
    """Stay this long after the last connection has ended."""

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


Message = NurseryReady | KeepWarm | StartWorker | Started | Ended | Reap | CountGpus | Gpus
_KINDS: dict[str, type[Message]] = {
    kind.__name__: kind for kind in (NurseryReady, KeepWarm, StartWorker, Started, Ended, Reap, CountGpus, Gpus)
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Parcel:
    message: Message
    files: list[int] = field(default_factory=list)


def send(line: socket.socket, message: Message, files: Sequence[int] = ()) -> None:
    """OSError if the other side is gone, or if the message is larger than a packet may be."""
    send_packet(line, message, files)


def receive(line: socket.socket, timeout_s: float | None = None) -> Parcel | None:
    """The next one. EOFError: the other side is gone. None: nothing came in time."""
    received = receive_packet(line, _KINDS, timeout_s)
    return Parcel(message=received[0], files=received[1]) if received is not None else None
