"""Between a loader's processes and the process that owns the leases: a Unix socket, one JSON line each way.

Works for processes that were forked, spawned or come from a fork server: all they need is the address. Its name is
abstract, so no file is left behind, and only processes of the same user are served. A process that dies closes its
connection; if the owner dies, its processes find out and end with an error."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

from everstep import errors
from everstep.data.index_iterator import Obtained
from everstep.errors import Abandoned, EverstepError, PermanentError

LOOK_S = 0.1  # while a process waits for a batch, it looks so often whether anybody still wants it

Answer = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderHello:
    """Who calls: one of the processes of an iteration of a loader."""

    process: int
    num_processes: int
    loader: int  # the same for all processes of a loader that belong together


def hello_of_this_process() -> LoaderHello:
    from torch.utils.data import get_worker_info

    info = get_worker_info()
    if info is None:  # no loader of torch's
        return LoaderHello(process=0, num_processes=1, loader=os.getpid())
    # They share the queue of what they have read, and nobody else does.
    queue = _loop_of_loader().get("data_queue")
    loader = info.seed - info.id if queue is None else os.fstat(queue._writer.fileno()).st_ino
    return LoaderHello(process=info.id, num_processes=info.num_workers, loader=loader)


class Hatch:
    """The owner's side. `answer(group, request)` is called in a thread for each process."""

    def __init__(self, answer: Callable[[int, Answer], Answer], new_group: Callable[[], int]) -> None:
        self.address = f"everstep-records-{uuid.uuid4().hex}"
        self._answer, self._new_group = answer, new_group
        self._lock = threading.Lock()
        self._group = -1  # the latest, and those who are in it
        self._members: dict[int, LoaderHello] = {}
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind("\0" + self.address)
        self._listener.listen(128)
        self._start(self._accept, "everstep-hatch")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(1.0)

    def _start(self, work: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()]
        thread.start()
        self._threads.append(thread)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if _uid_of_peer(connection) != os.getuid():
                connection.close()
                continue
            self._start(lambda c=connection: self._serve(c), "everstep-hatch-process")  # type: ignore[misc]

    def _serve(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.add(connection)
        try:
            with connection, connection.makefile("r") as lines:
                if not (line := lines.readline()):
                    return
                group = self._join(LoaderHello(**json.loads(line)))
                for line in lines:
                    _send(connection, self._answered(group, json.loads(line)))
        except OSError:
            pass  # the process is gone; torch's loader says so
        finally:
            with self._lock:
                self._connections.discard(connection)

    def _join(self, hello: LoaderHello) -> int:
        """The number of those who belong together; who calls once more begins another iteration."""
        with self._lock:
            is_first = not self._members or any(each.loader != hello.loader for each in self._members.values())
            if is_first or hello.process in self._members:
                self._group, self._members = self._new_group(), {}
            self._members[hello.process] = hello
            return self._group

    def _answered(self, group: int, request: Answer) -> Answer:
        try:
            return self._answer(group, request)
        except Exception as error:
            kind = type(error).__name__ if isinstance(error, EverstepError) else "PermanentError"
            message = error.message if isinstance(error, EverstepError) else f"{type(error).__name__}: {error}"
            return {"error": kind, "message": message, "hint": getattr(error, "hint", None)}


class HatchClient:
    """The side of a loader's process."""

    def __init__(self, address: str, hello: LoaderHello) -> None:
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.settimeout(LOOK_S)
        try:
            self._connection.connect("\0" + address)
        except OSError as error:
            self._connection.close()
            raise PermanentError(
                f"the process that hands out the records cannot be reached: {error}",
                hint="it is the one that made the RecordIndexService: is it alive, and on this machine?",
                code="record-owner-unreachable",
            ) from None
        if _uid_of_peer(self._connection) != os.getuid():
            raise PermanentError(
                "the process that hands out the records belongs to another user", code="record-owner-of-another-user"
            )
        self._parent = os.getppid()
        self._received = b""
        self._say(asdict(hello))

    def ask(self, request: Answer) -> Answer:
        self._say(request)
        answer: Answer = json.loads(self._read_line())
        if "error" in answer:
            raise _error(answer)
        return answer

    def close(self) -> None:
        self._connection.close()

    def _say(self, message: Answer) -> None:
        try:
            _send(self._connection, message)
        except OSError as error:
            raise PermanentError(
                f"the process that hands out the records is gone: {error}", code="record-owner-gone-sending"
            ) from None

    def _read_line(self) -> bytes:
        while b"\n" not in self._received:
            try:
                more = self._connection.recv(1 << 16)
            except TimeoutError:
                self._look()
                continue
            except OSError:
                more = b""
            if not more:
                raise PermanentError("the process that hands out the records is gone", code="record-owner-gone")
            self._received += more
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _look(self) -> None:
        # A brother that was forked after us may hold the owner's end of our connection open: then its death is no
        # end of the stream.
        if os.getppid() != self._parent:
            raise PermanentError("the process that hands out the records is gone", code="record-owner-gone-unseen")
        if _is_loader_done():
            raise Abandoned("the loader is being ended", code="loader-ending")


class RemoteBatches:
    """Batches for a loader's process."""

    def __init__(self, client: HatchClient) -> None:
        self._client = client
        self._iteration = -1

    def begin(self) -> None:
        self._iteration += 1

    def obtain(self, number: int) -> Obtained | None:
        answer = self._ask("next", number)
        if answer.get("end"):
            return None
        return Obtained(number=number, indices=answer["indices"], is_ghost=answer["is_ghost"])

    def abandon(self, number: int) -> None:
        self._ask("abandon", number)

    def amend(self, number: int, failed: Sequence[tuple[int, str]]) -> None:
        self._ask("amend", number, failed=failed)

    def close(self) -> None:
        self._client.close()

    def _ask(self, what: str, number: int, **more: Any) -> Answer:
        return self._client.ask({"do": what, "iteration": self._iteration, "number": number, **more})


def _is_loader_done() -> bool:
    """torch ends its processes by an event that they look at between two batches; one that waits here must, too."""
    event = _loop_of_loader().get("done_event")
    return event is not None and bool(event.is_set())


def _loop_of_loader() -> Mapping[str, Any]:
    """What the loop of a process of torch's loader knows; nothing in another process."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_worker_loop":
            return frame.f_locals
        frame = frame.f_back
    return {}


def _send(connection: socket.socket, message: Answer) -> None:
    connection.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")


def _error(answer: Answer) -> EverstepError:
    kind = getattr(errors, str(answer["error"]), PermanentError)
    if kind not in (errors.UsageError, errors.TemporaryError, errors.JobStopped, errors.CoordinatorUnreachable):
        kind = PermanentError
    found: EverstepError = kind(answer["message"], hint=answer["hint"])
    return found


def _uid_of_peer(connection: socket.socket) -> int:
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)
