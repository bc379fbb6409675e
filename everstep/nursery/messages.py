"""Messages between an agent and a nursery (ipc/local_socket.py): orders to start workers, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass


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
KINDS: dict[str, type[Message]] = {
    kind.__name__: kind for kind in (NurseryReady, KeepWarm, StartWorker, Started, Ended, Reap, CountGpus, Gpus)
}
