"""The nursery's loop: connections, orders to fork, and the ends of the forked.

Workers belong to the connection that ordered them and are killed with it, each with all that it has started. The exit
code is sent as soon as a worker ends; its pid stays taken until the agent releases it, as with a child of its own."""

from __future__ import annotations

import ctypes
import fcntl
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from everstep.ipc.local_socket import peer_user, receive_packet, send_packet
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
from everstep.nursery.preload import ask_fork
from everstep.process import collect_exit, kill_group

_PR_SET_PDEATHSIG = 1
_COUNT_S = 60.0  # the driver may take its time
libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class ForkedWorker:
    """What a fork is to become; it leads its own session already, and dies with the nursery."""

    order: StartWorker
    files: list[int]


@dataclass(kw_only=True, slots=True, eq=False)
class _Client:
    line: socket.socket
    workers: dict[int, int] = field(default_factory=dict)  # pid: pidfd


class NurseryServer:
    def __init__(self, line: socket.socket, *, path: str, problem: str) -> None:
        """`path`: where `line` listens; "" if it is the one connection."""
        self._path, self._problem = path, problem
        self._pid = os.getpid()
        self._selector = selectors.DefaultSelector()
        self._connections: list[_Client] = []
        self._idle_s = 0.0
        self._idle_since = time.monotonic()
        self._listener: socket.socket | None = None
        if path:
            self._listener = line
            line.setblocking(False)
            self._selector.register(line, selectors.EVENT_READ, self._accept)
        else:
            self._welcome(line)
        # From here on a lost connection means an agent's end, and there is work to do then.
        libc.prctl(_PR_SET_PDEATHSIG, 0)
        # A scheduler that wants a node back signals all of its processes: the agent needs us until its workers leave.
        self._former_sigterm = signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def serve(self) -> ForkedWorker | None:
        """Returns in each fork, with what it is to become; in the nursery itself when that is to end."""
        while not self._is_over():
            for key, _ in self._selector.select(self._patience_s()):
                act: Callable[[], ForkedWorker | None] = key.data
                # What one act closes may have been next: the selector knows.
                if key.fd in self._selector.get_map() and (forked := act()) is not None:
                    return forked
        return None

    # --- connections --------------------------------------------------------------------------------

    def _patience_s(self) -> float | None:
        return None if self._connections else max(0.0, self._idle_since + self._idle_s - time.monotonic())

    def _is_over(self) -> bool:
        if self._connections or time.monotonic() < self._idle_since + self._idle_s:
            return False
        if self._listener is None:
            return True
        # A run that looks for a nursery holds the same lock: it finds this one as it was, or not at all.
        with open(f"{self._path}.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._accept()
            if not self._connections:
                os.unlink(self._path)
                self._listener.close()
        return not self._connections

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            line, _ = self._listener.accept()
        except BlockingIOError:
            return
        if peer_user(line) == os.geteuid():
            self._welcome(line)
        else:
            line.close()

    def _welcome(self, line: socket.socket) -> None:
        connection = _Client(line=line)
        self._connections.append(connection)
        self._selector.register(line, selectors.EVENT_READ, lambda: self._hear(connection))
        self._tell(connection, NurseryReady(pid=self._pid, problem=self._problem))

    def _hear(self, connection: _Client) -> ForkedWorker | None:
        try:
            received = receive_packet(connection.line, KINDS)
        except EOFError:
            self._drop(connection)
            return None
        assert received is not None
        order, files = received
        try:
            return self._obey(connection, order, files)
        finally:
            for descriptor in files if os.getpid() == self._pid else ():
                os.close(descriptor)

    def _obey(self, connection: _Client, order: Message, files: list[int]) -> ForkedWorker | None:
        if isinstance(order, StartWorker):
            return self._fork_worker(connection, order, files)
        if isinstance(order, Reap):
            self._reap(connection, order.pid)
        elif isinstance(order, KeepWarm):
            self._idle_s = order.idle_s
        elif isinstance(order, CountGpus):
            self._tell(connection, Gpus(number=count_gpus()))
        return None

    def _drop(self, connection: _Client) -> None:
        """Its agent is gone, and with it all that it has ordered."""
        self._selector.unregister(connection.line)
        connection.line.close()
        self._connections.remove(connection)
        for pid in connection.workers:
            kill_group(pid)
        for pid in list(connection.workers):
            self._reap(connection, pid)
        self._idle_since = time.monotonic()

    def _tell(self, connection: _Client, message: Message, files: Sequence[int] = ()) -> None:
        try:
            send_packet(connection.line, message, files)
        except OSError:
            pass  # gone: the line will say so

    # --- workers ------------------------------------------------------------------------------------

    def _fork_worker(self, connection: _Client, order: StartWorker, files: list[int]) -> ForkedWorker | None:
        ours, theirs = os.pipe()
        try:
            pid = os.fork()
        except OSError as problem:
            os.close(ours)
            os.close(theirs)
            self._tell(connection, Started(request=order.request, problem=f"fork: {problem.strerror}"))
            return None
        if pid == 0:
            self._lead_session()
            os.close(ours)
            os.close(theirs)
            self._close()
            return ForkedWorker(order=order, files=files)
        os.close(theirs)
        os.read(ours, 1)  # until it leads a group that can be signaled
        os.close(ours)
        descriptor = os.pidfd_open(pid)
        connection.workers[pid] = descriptor
        self._selector.register(descriptor, selectors.EVENT_READ, lambda: self._notice(connection, pid))
        self._tell(connection, Started(request=order.request, pid=pid), [descriptor])
        return None

    def _lead_session(self) -> None:
        os.setsid()
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGTERM, self._former_sigterm)
        if os.getppid() != self._pid:
            os._exit(0)

    def _close(self) -> None:
        """In a fork: all that the nursery has open. Through the objects that own it, lest they close it again later,
        when the number is another's."""
        self._selector.close()
        if self._listener is not None:
            self._listener.close()
        for connection in self._connections:
            connection.line.close()
            for descriptor in connection.workers.values():
                os.close(descriptor)

    def _notice(self, connection: _Client, pid: int) -> None:
        descriptor = connection.workers[pid]
        self._selector.unregister(descriptor)
        self._tell(connection, Ended(pid=pid, code=collect_exit(descriptor, os.WNOWAIT)))

    def _reap(self, connection: _Client, pid: int) -> None:
        descriptor = connection.workers.pop(pid, None)
        if descriptor is None:
            return
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)
        collect_exit(descriptor)
        os.close(descriptor)


def count_gpus() -> int:
    """How many GPUs torch would use; asked in a fork, lest the nursery itself get in touch with CUDA."""
    import torch

    return ask_fork(torch.cuda.device_count, _COUNT_S) or 0
