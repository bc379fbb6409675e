"""The agent's side of the nursery: start it, order workers from it, learn of their ends.

A worker from it is a `Child` like any other. Its pidfd comes with it, so its death is seen as early as that of a child
of our own; the exit code comes from the nursery, its parent, a moment later. Knows nothing of torch."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from everstep.ipc.local_socket import pair, receive_packet, send_packet
from everstep.nursery.messages import (
    KINDS,
    CountGpus,
    Ended,
    Gpus,
    KeepWarm,
    Message,
    NurseryReady,
    Reap,
    Started,
    StartWorker,
)
from everstep.process import Child, ending_code, program_command

# What a nursery's forks will be: what it has imported.
WORKERS, TRIALS, CONTROL, NODES = "workers", "trials", "control", "nodes"
_ANSWER_S = 5.0  # a fork takes milliseconds; the machine may be busy
_END_S = 2.0  # for a nursery whose agent goes to kill its workers


class NurseryGone(Exception):
    """It has died, refused or does not answer: start the worker plainly."""


def nursery_command(descriptor: int, kind: str, path: Path | None = None) -> list[str]:
    """`path`: of the socket, if it is one that listens."""
    return program_command("everstep.nursery.main", str(descriptor), kind, *([str(path)] if path else []))


class NurseryClient:
    """A connection to one. Used from one thread."""

    def __init__(self, line: socket.socket, *, process: Child | None = None, output: IO[bytes] | None = None) -> None:
        """`process` is the nursery itself if it is to end with us, and `output` what it prints."""
        self._line, self._process, self._output = line, process, output
        self._is_for_one = False
        self._requests = itertools.count(1)
        self._started: dict[int, tuple[Started, list[int]]] = {}
        self._awaited: set[int] = set()
        self._codes: dict[int, int] = {}
        self._num_gpus: int | None = None
        self.is_gone = False
        self.is_lost = False  # it went before we closed it, and all its forks with it
        self.pid = 0
        self.problem = ""  # why it will never be of use

    @classmethod
    def start(cls, env: Mapping[str, str], kind: str = WORKERS) -> NurseryClient:
        """One of our own, which ends with us. It is not ready yet: it says so."""
        ours, theirs = pair()
        output = tempfile.TemporaryFile()  # noqa: SIM115  closed with the nursery
        with theirs:
            command = nursery_command(theirs.fileno(), kind)
            process = Child.start(command, env=env, output=output, descriptors=[theirs.fileno()])
        return cls(ours, process=process, output=output)

    def fileno(self) -> int:
        """Readable when there is something to `hear`."""
        return self._line.fileno()

    @property
    def is_ready(self) -> bool:
        return bool(self.pid) and not self.problem and not self.is_gone

    def hear(self) -> None:
        """Read all messages that have arrived."""
        while not self.is_gone and self._take(0.0):
            pass

    def await_ready(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not self.pid and not self.is_gone and self._take(max(0.0, deadline - time.monotonic())):
            pass
        return self.is_ready

    def keep_warm(self, idle_s: float) -> None:
        self._send(KeepWarm(idle_s=idle_s))

    def num_gpus(self) -> int:
        self._send(CountGpus())
        deadline = time.monotonic() + 2 * _ANSWER_S
        while self._num_gpus is None:
            self._take_or_give_up(deadline)
        return self._num_gpus

    def start_worker(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        output: IO[bytes] | int | None,
        errors: IO[bytes] | int | None = None,
        cwd: str | Path | None = None,
        is_only: bool = False,
    ) -> Child:
        """`is_only`: the connection was made for this process, and is closed when it has ended."""
        self._is_for_one = is_only
        request = next(self._requests)
        order = StartWorker(
            request=request, command=list(command), environment=dict(env), directory=str(cwd or os.getcwd())
        )
        stdout = 1 if output is None else _number(output)
        stderr = _number(errors) if errors is not None else 2 if output is None else stdout
        self._send(order, (stdout, stderr))
        self._awaited.add(request)
        deadline = time.monotonic() + _ANSWER_S
        try:
            while request not in self._started:
                self._take_or_give_up(deadline)
        finally:
            self._awaited.discard(request)
        started, files = self._started.pop(request)
        if started.problem:
            raise NurseryGone(started.problem)
        (descriptor,) = files
        return Child(started.pid, descriptor, partial(self._collect, started.pid))

    def close(self) -> None:
        """Its workers end with the connection; a nursery of our own ends as well."""
        self.is_gone = True
        self._line.close()
        if self._process is not None:
            self._process.wait(_END_S)
            self._process.kill()
        if self._output is not None:
            self._output.close()

    def last_words(self) -> str:
        if self._output is None:
            return ""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()
        return lines[-1] if lines else ""

    # --- the line -----------------------------------------------------------------------------------

    def _collect(self, pid: int) -> int:
        """The exit code of a worker that has ended. One that outlived the nursery did so for no more than a moment."""
        deadline = time.monotonic() + _ANSWER_S
        code: int | None = None
        try:
            while pid not in self._codes:
                self._take_or_give_up(deadline)
            code = self._codes.pop(pid)
            self._send(Reap(pid=pid))
        except NurseryGone:
            pass
        if code is None:  # the nursery is gone, or too busy to report it: the kernel still can
            code = ending_code(pid)
        if self._is_for_one:
            self.close()
        return -signal.SIGKILL if code is None else code

    def _take_or_give_up(self, deadline: float) -> None:
        if self.is_gone:
            raise NurseryGone("it has ended")
        if not self._take(max(0.0, deadline - time.monotonic())):
            raise NurseryGone("it has ended" if self.is_gone else f"no answer within {_ANSWER_S:.0f} s")

    def _take(self, timeout_s: float) -> bool:
        """Whether something came in time."""
        try:
            received = receive_packet(self._line, KINDS, timeout_s)
        except EOFError:
            self.is_gone = self.is_lost = True
            return False
        if received is not None:
            self._note(*received)
        return received is not None

    def _note(self, message: Message, files: list[int]) -> None:
        if isinstance(message, NurseryReady):
            self.pid, self.problem = message.pid, message.problem
        elif isinstance(message, Ended):
            self._codes[message.pid] = message.code
        elif isinstance(message, Gpus):
            self._num_gpus = message.number
        elif isinstance(message, Started) and message.request in self._awaited:
            self._started[message.request] = (message, files)
        elif isinstance(message, Started):
            self._discard_late_worker(message, files)

    def _discard_late_worker(self, late: Started, files: list[int]) -> None:
        """It came after we had given up: another one runs in its place."""
        for descriptor in files:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)
            self._send(Reap(pid=late.pid))

    def _send(self, message: Message, files: Sequence[int] = ()) -> None:
        try:
            send_packet(self._line, message, files)
        except OSError as problem:
            raise NurseryGone(str(problem)) from None


def _number(file: IO[bytes] | int) -> int:
    return file if isinstance(file, int) else file.fileno()
