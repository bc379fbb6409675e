"""Batches for a loader's processes: which call of the loader asks, and a socket to the process that owns the leases.

Which call of torch's loader a request is made in is seen on the stack: so a batch that is handed out is exactly one
that comes out, also after a loop that was broken off, and a loader with another batch size is refused. Without a loader
of torch's, each batch simply follows the one before.

The socket takes one JSON line each way; a packet of `ipc.local_socket` could not hold a large batch. It works for
processes that were forked, spawned or come from a fork server: all they need is the address. Its name is abstract, so
no file is left behind, and only processes of the same user are served. A process that dies closes its connection; if
the owner dies, its processes find out and end with an error."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from types import CodeType, FrameType
from typing import Any

from everstep import errors
from everstep.errors import Abandoned, EverstepError, PermanentError, UsageError
from everstep.ipc.local_socket import peer_user

LOOK_S = 0.1  # a process that waits for a batch checks this often whether it is still wanted

Answer = dict[str, Any]


class EndOfRecords(StopIteration):
    """The end of the data. torch raises it again in the main process; of a class that has a `message`, it does so
    without a cycle of references, which would keep the loader until some later garbage collection, and make ending its
    processes take 5 s for each."""

    message = "the end of the data"

    def __init__(self, message: str = message) -> None:
        super().__init__(message)


@dataclass(frozen=True, kw_only=True, slots=True)
class Obtained:
    """One batch, for the reader of its records."""

    indices: Sequence[int]
    is_ghost: bool


class IndexBatches:
    """Batch after batch, for one process of a loader, whose numbers are process, process + num_processes, …

    `ask`: of the process that owns the leases."""

    def __init__(
        self, ask: Callable[[Answer], Answer], close: Callable[[], None], *, process: int = 0, num_processes: int = 1
    ) -> None:
        self._ask_owner, self.close = ask, close
        self._process, self._num_processes = process, num_processes
        self._iteration = -1
        self.begin()

    def begin(self) -> None:
        """A new iteration of the loader."""
        self._iteration += 1
        self._number = self._process - self._num_processes

    def next(self) -> Obtained | None:
        """None: the end."""
        self._number += self._num_processes
        return self.again()

    def again(self) -> Obtained | None:
        """Another in place of one that had no record that could be read."""
        answer = self._ask("next")
        return Obtained(**answer) if answer else None

    def abandon(self) -> None:
        """It will not come out."""
        self._ask("abandon")

    def amend(self, failed: Sequence[tuple[int, str]]) -> None:
        """Of these, counted from its beginning, the records could not be read, and why."""
        self._ask("amend", failed=failed)

    def _ask(self, what: str, **more: Any) -> Answer:
        return self._ask_owner({"do": what, "iteration": self._iteration, "number": self._number, **more})


class RecordIterator:
    """Record after record of these batches, as torch's loader asks for them."""

    def __init__(self, batches: IndexBatches, batch_size: int) -> None:
        self._batches, self._batch_size = batches, batch_size
        self._loader: object = None  # torch's fetcher: there is one for each iteration in each process
        self._batch: object = None  # what torch reads with one call of it
        self._left: list[int] = []  # the last is the next

    def next(self) -> int:
        loader, batch = _find_loader()
        if loader is not self._loader:
            self._loader, self._left = loader, []
            self._batches.begin()
        if self._left and batch is not self._batch:  # it was broken off, and will not come out
            self._batches.abandon()
            self._left = []
        if not self._left:
            self._check(batch)
            self._batch = batch
            found = self._batches.next()
            if found is None:
                raise EndOfRecords
            self._left = list(reversed(found.indices))
        return self._left.pop()

    def _check(self, batch: Any) -> None:
        if batch is None:
            return
        size = len(batch) if isinstance(batch, list) else 1
        if size != self._batch_size:
            raise UsageError(
                f"the loader reads a batch of {size}, the RecordIndexService has batch_size={self._batch_size}",
                hint="give both the same batch_size, and the dataset a __len__ of sys.maxsize",
                code="batch-size-differs",
            )


def _find_loader() -> tuple[object, object]:
    """torch's fetcher that is reading now, and the indices that it was given; None, None without one."""
    if "torch.utils.data" not in sys.modules:
        return None, None
    found = locals_of(_fetch())
    return found.get("self"), found.get("possibly_batched_index")


@cache
def _fetch() -> Callable[..., Any]:
    from torch.utils.data._utils import fetch

    return fetch._MapDatasetFetcher.fetch


def locals_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """What the nearest call of this function on the stack knows; nothing if there is none."""
    code: CodeType = function.__code__
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code is code:
            return frame.f_locals
        frame = frame.f_back
    return {}


# --- between processes ---


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderHello:
    """From one of the processes of an iteration of a loader."""

    process: int
    num_processes: int
    loader: int  # the same for all processes of a loader that belong together


def hello_of_this_process() -> LoaderHello:
    from torch.utils.data import get_worker_info

    info = get_worker_info()
    if info is None:  # no loader of torch's
        return LoaderHello(process=0, num_processes=1, loader=os.getpid())
    # They share the pipe for what they have read, and no other process does.
    pipe = _loop_of_loader().get("data_queue")
    loader = info.seed - info.id if pipe is None else os.fstat(pipe._writer.fileno()).st_ino
    return LoaderHello(process=info.id, num_processes=info.num_workers, loader=loader)


class LoaderServer:
    """The owner's side. `answer(group, request)` is called in a thread for each process."""

    def __init__(self, answer: Callable[[int, Answer], Answer], new_group: Callable[[], int]) -> None:
        self.address = f"everstep-records-{uuid.uuid4().hex}"
        self._answer, self._new_group = answer, new_group
        self._lock = threading.Lock()
        self._group = -1  # the latest, and its members
        self._members: dict[int, LoaderHello] = {}
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind("\0" + self.address)
        self._listener.listen(128)
        self._start(self._accept, "everstep-loader-server")

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
            if peer_user(connection) != os.getuid():
                connection.close()
                continue
            self._start(lambda c=connection: self._serve(c), "everstep-loader-process")  # type: ignore[misc]

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
        """The number of the processes that belong together; one that calls again begins another iteration."""
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


class LoaderClient:
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
        if peer_user(self._connection) != os.getuid():
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
        # A process that was forked after this one may hold the owner's end of our connection open: then the owner's
        # death does not end the stream.
        watchdog = _loop_of_loader().get("watchdog")  # knows the parent from before this connection
        if os.getppid() != self._parent or (watchdog is not None and not watchdog.is_alive()):
            raise PermanentError("the process that hands out the records is gone", code="record-owner-gone-unseen")
        if _is_loader_done():
            raise Abandoned("the loader is being ended", code="loader-ending")


def _is_loader_done() -> bool:
    """torch ends its processes by an event that they look at between two batches; one that waits here must, too."""
    event = _loop_of_loader().get("done_event")
    return event is not None and bool(event.is_set())


def _loop_of_loader() -> Mapping[str, Any]:
    """What the loop of a process of torch's loader knows; nothing in another process."""
    from torch.utils.data._utils.worker import _worker_loop

    return locals_of(_worker_loop)


def _send(connection: socket.socket, message: Answer) -> None:
    connection.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")


def _error(answer: Answer) -> EverstepError:
    kind = getattr(errors, str(answer["error"]), PermanentError)
    if kind not in (errors.UsageError, errors.TemporaryError, errors.JobStopped, errors.CoordinatorUnreachable):
        kind = PermanentError
    found: EverstepError = kind(answer["message"], hint=answer["hint"])
    return found
