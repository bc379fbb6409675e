"""A coordinator as a process of this machine, with a store and a token of its own, started again if it dies.

The token is in a file that only this user can read; it is never on a command line."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from everstep import env as names
from everstep.addresses import can_bind
from everstep.errors import EverstepError, PermanentError, UsageError
from everstep.launcher.logs import tail
from everstep.process import Child, own_command
from everstep.record.log_place import log_path
from everstep.storage import private_file
from everstep.wire.tokens import new_tokens

Start = Callable[..., Child]

READY_S = 120.0  # of which a second is used, unless the file system that Python is on is far away
_END_S = 5.0  # from SIGTERM to SIGKILL


@dataclass(frozen=True, kw_only=True, slots=True)
class CoordinatorFiles:
    """All that a coordinator keeps, in one private folder."""

    directory: Path
    serves_code: bool = False  # to nodes: the tarballs in it

    @property
    def token(self) -> Path:
        return self.directory / "token"

    @property
    def store(self) -> Path:
        return self.directory / "coordinator.db"

    @property
    def store_url(self) -> str:
        return f"sqlite:///{self.store}"

    @property
    def logs(self) -> Path:
        """Of the job: what its workers and agents have printed."""
        return log_path(self.store)

    @property
    def ready(self) -> Path:
        return self.directory / "coordinator.url"

    @property
    def log(self) -> Path:
        return self.directory / "coordinator.log"


def private_directory(path: Path) -> Path:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot make the folder {path}: {error.strerror}"
        raise UsageError(
            problem, hint="EVERSTEP_HOME, or --log-dir of `everstep run`, names another folder", code="folder-not-made"
        ) from None
    return path.resolve()


def write_token(path: Path) -> None:
    """New tokens, one of each role, unless there are some."""
    try:
        descriptor = private_file.descriptor(path, os.O_WRONLY | os.O_EXCL)
    except FileExistsError:
        return
    with open(descriptor, "w") as file:
        file.write(new_tokens())


def earlier_port(files: CoordinatorFiles, host: str = "127.0.0.1") -> int:
    """The one that an earlier coordinator of this folder had, if it is free: nodes that are left know no other. Else 0:
    any."""
    try:
        port = int(files.ready.read_text().strip().rsplit(":", 1)[1])
    except (FileNotFoundError, IndexError, ValueError):
        return 0
    return port if can_bind(host, port, is_reused=True) else 0


def serve_command(files: CoordinatorFiles, host: str, port: int) -> list[str]:
    options = {
        "--host": host,
        "--port": str(port),
        "--store": files.store_url,
        "--token-file": str(files.token),
        "--ready-file": str(files.ready),
    }
    if files.serves_code:
        options["--code"] = str(files.directory)
    return own_command("serve", options)


def start_coordinator(
    files: CoordinatorFiles,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    inside: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    start: Start = Child.start,
) -> tuple[Child, str]:
    """Start one and wait until it answers: its process and URL. `inside` is put before the command."""
    write_token(files.token)
    files.ready.unlink(missing_ok=True)
    with private_file.append_log(files.log) as output:
        child = start([*inside, *serve_command(files, host, port)], output=output, env=env or names.everything())
    try:
        return child, await_ready(child, files, READY_S)
    except BaseException:
        child.kill()
        raise


def await_ready(child: Child, files: CoordinatorFiles, patience_s: float) -> str:
    """The URL of a coordinator that was started on these files, once it answers."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if files.ready.exists() and (url := files.ready.read_text().strip()):
            return url
        if (ended := child.wait(0.005)) is not None:
            problem = "\n  ".join([f"the coordinator ended: {ended}", *tail(files.log)])
            raise PermanentError(problem, code="coordinator-ended")
    problem = "\n  ".join([f"the coordinator did not answer within {patience_s:.0f} s", *tail(files.log)])
    raise PermanentError(problem, code="coordinator-start-timed-out")


class LocalCoordinator:
    """Kept alive by a thread of its own as long as it is open: same store, same port, same token."""

    def __init__(
        self,
        files: CoordinatorFiles,
        *,
        say: Callable[[str], None],
        host: str = "127.0.0.1",
        port: int = 0,
        start: Start = Child.start,
    ) -> None:
        """`start` starts the first one."""
        self._files, self._say, self._host, self._port, self._start = files, say, host, port, start
        self._child: Child | None = None
        self.url = ""
        self._error: EverstepError | OSError | None = None
        self._is_ready, self._is_closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._keep, name="local coordinator", daemon=True)

    def __enter__(self) -> LocalCoordinator:
        self._thread.start()
        self._is_ready.wait()
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *error: object) -> None:
        self._is_closing.set()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._child is not None:
                self._child.signal(number)
            self._thread.join(_END_S)

    def listen_on(self, host: str) -> None:
        """From now on, at the same port: it is started again if it listens elsewhere."""
        if host != self._host and self._child is not None:
            self._host = host
            self._child.signal(signal.SIGTERM)

    def _keep(self) -> None:
        # In this thread, because the kernel ends a child with the thread that started it.
        try:
            self._child, self.url = start_coordinator(self._files, host=self._host, port=self._port, start=self._start)
        except (EverstepError, OSError) as error:
            self._error = error
            return
        finally:
            self._is_ready.set()
        port = int(self.url.rsplit(":", 1)[1])
        while not self._is_closing.is_set():
            ended = self._child.wait()
            if not self._is_closing.is_set():
                self._say(f"the coordinator ended ({ended}) and is started again")
                self._start_again(port)
        self._child.kill()

    def _start_again(self, port: int) -> None:
        host = self._host
        try:
            self._child, _ = start_coordinator(self._files, host=host, port=port)
            if host != self._host:  # which was changed meanwhile
                self._child.signal(signal.SIGTERM)
        except (EverstepError, OSError) as error:  # OSError: a full or read-only disk, no process left
            self._say(f"the coordinator cannot be started, trying again: {error}")
            self._is_closing.wait(1.0)
