"""The local service: a coordinator and a pool's agent on this machine, in the background, for this user's experiments.

Started by the first command that needs it; a killed part is started again. It ends by itself when no experiment is
active and no command uses it. All that it knows is in its store: after kill -9 of everything, the next command starts
it again, and experiments continue."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from everstep import env
from everstep.client.calls import Coordinator
from everstep.errors import EverstepError, PermanentError
from everstep.jobs.node import asked_to_end
from everstep.launcher.local_coordinator import CoordinatorFiles, LocalCoordinator, earlier_port, private_directory
from everstep.launcher.logs import tail
from everstep.pool.options import DEFAULT_POOL
from everstep.process import Child, own_command, process_state, start_detached, started_at, wait_for_end
from everstep.storage import private_file
from everstep.waiting import wait_until
from everstep.wire.experiments import LIVE, PAUSED

Say = Callable[[str], None]

READY_S = 120.0
STOP_S = 120.0  # trials save before they leave
_NUM_TRIES = 3
_LOOK_S = 1.0
_AGAIN_S = 0.5
_AT_WORK = ",".join(each for each in LIVE if each != PAUSED)

_uses: list[IO[bytes]] = []  # of this process, until it ends


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalFiles:
    folder: Path

    @classmethod
    def of_user(cls) -> LocalFiles:
        return cls(folder=env.home() / "local")

    @property
    def coordinator(self) -> CoordinatorFiles:
        return CoordinatorFiles(directory=self.folder / "coordinator", serves_code=True)

    @property
    def agent(self) -> Path:
        return self.folder / "agent"

    @property
    def log(self) -> Path:
        return self.folder / "service.log"

    @property
    def pid(self) -> Path:
        """Of the service: its number and start."""
        return self.folder / "service.pid"

    @property
    def start(self) -> Path:
        """Held while the service is started or ends."""
        return self.folder / "start.lock"

    @property
    def running(self) -> Path:
        """Held by the service."""
        return self.folder / "service.lock"

    @property
    def users(self) -> Path:
        """Shared by the commands that use the service."""
        return self.folder / "users.lock"


# --- for commands -----------------------------------------------------------------------------------


def connect_local(say: Say) -> tuple[str, Path]:
    """The URL and the token file of this user's local service, started if it is not running. It stays for as long as
    this process does."""
    files = LocalFiles.of_user()
    private_directory(files.folder)
    with private_file.locked(files.start):
        _note_use(files)
        for _ in range(_NUM_TRIES):
            if not is_running(files):
                say(f"starting the local service in {files.folder}")
                _start(files)
            if url := _await_ready(files):
                return url, files.coordinator.token
    raise _not_started(files)


def running_service() -> tuple[str, Path] | None:
    """As `connect_local`, but only if it is there."""
    files = LocalFiles.of_user()
    if not files.folder.is_dir() or not is_running(files):
        return None
    url = _await_ready(files)
    return (url, files.coordinator.token) if url else None


def stop_local(say: Say) -> bool:
    """End it; trials save first. False: it was not running."""
    files = LocalFiles.of_user()
    found = _pid(files)
    if not files.folder.is_dir() or not is_running(files) or found is None:
        return False
    say("the local service ends; trials save first")
    os.kill(found, signal.SIGTERM)
    if not wait_for_end(found, STOP_S):
        message = f"the local service (pid {found}) has not ended within {STOP_S:.0f} s"
        raise PermanentError(message, hint=f"see {files.log}", code="local-service-not-ended")
    return True


def is_running(files: LocalFiles) -> bool:
    with private_file.append(files.running) as lock:
        return not _try_lock(lock, fcntl.LOCK_SH)


def _note_use(files: LocalFiles) -> None:
    if not _uses:
        _uses.append(private_file.append(files.users))
        fcntl.flock(_uses[0], fcntl.LOCK_SH)


def _start(files: LocalFiles) -> None:
    environment = {name: value for name, value in env.everything().items() if name not in _OF_OTHERS}
    with private_file.append(files.log) as output:
        command = own_command("local-service", {"--folder": str(files.folder)})
        pid = start_detached(command, env=environment, output=output, descriptors=[])
    is_up = wait_until(
        lambda: is_running(files) or process_state(pid) == "ended", READY_S, "the local service", pause_s=0.01
    )
    if not is_up or not is_running(files):
        raise _not_started(files)


_OF_OTHERS = (env.TOKEN, env.TOKEN_FILE, env.COORDINATOR, env.JOB, env.WORKER, env.EXPERIMENT, env.TRIAL)


def _await_ready(files: LocalFiles) -> str:
    """Its URL, once it answers; "" if it ends, as one does that was asked to."""

    def look() -> str:
        try:
            url = files.coordinator.ready.read_text().strip()
            with closing(Coordinator(url, env.read_token(files.coordinator.token), "")) as coordinator:
                coordinator.check()
            return url
        except (OSError, EverstepError):  # not there yet; at the address of an earlier one, anything may answer
            return ""

    url = wait_until(lambda: look() or not is_running(files), READY_S, "the local service", pause_s=0.02)
    return url if isinstance(url, str) else ""


def _not_started(files: LocalFiles) -> PermanentError:
    problem = "\n  ".join(["the local service did not start", *tail(files.log)])
    return PermanentError(problem, hint=f"see {files.log}", code="local-service-not-started")


def _pid(files: LocalFiles) -> int | None:
    try:
        number, began = files.pid.read_text().split()
    except (OSError, ValueError):
        return None
    return int(number) if started_at(int(number)) == began else None


def _try_lock(lock: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# --- the service itself -----------------------------------------------------------------------------


def serve_local(folder: Path, say: Say) -> int:
    """Until it is asked to end, or has been idle for long enough."""
    files = LocalFiles(folder=private_directory(folder))
    with _ending(files) as may_end, private_file.append(files.running) as lock:
        if not _try_lock(lock, fcntl.LOCK_EX):
            say("it is running already")
            return 0
        os.chdir(files.folder)
        private_file.write_text(files.pid, f"{os.getpid()} {started_at(os.getpid())}")
        private_directory(files.coordinator.directory)
        port = earlier_port(files.coordinator)
        with (
            asked_to_end() as asked,
            LocalCoordinator(files.coordinator, say=say, port=port) as coordinator,
            LocalAgent(files, coordinator.url, say),
        ):
            _stay(asked, may_end, IdleWatch(files, coordinator.url))
        files.pid.unlink(missing_ok=True)
    return 0


def _stay(asked: threading.Event, may_end: Callable[[], bool], watch: IdleWatch) -> None:
    while not asked.wait(_LOOK_S):
        if watch.is_over() and may_end():
            return


@contextmanager
def _ending(files: LocalFiles) -> Iterator[Callable[[], bool]]:
    """What is called last: True if no command can come meanwhile. Commands wait for the end, and start a new one."""
    with private_file.append(files.start) as lock, private_file.append(files.users) as users:
        yield lambda: _try_lock(lock, fcntl.LOCK_EX) and _try_lock(users, fcntl.LOCK_EX)


class IdleWatch:
    """Whether the service is of no use any more."""

    def __init__(self, files: LocalFiles, url: str) -> None:
        self._files, self._url = files, url
        self._idle_s = env.local_idle_s()
        self._used_at = time.monotonic()

    def is_over(self) -> bool:
        if self._has_users() or self._has_work():
            self._used_at = time.monotonic()
        return time.monotonic() - self._used_at >= self._idle_s

    def _has_users(self) -> bool:
        with private_file.append(self._files.users) as lock:
            return not _try_lock(lock, fcntl.LOCK_EX)

    def _has_work(self) -> bool:
        """An experiment is active, or on its way to its end; or the coordinator cannot tell."""
        try:
            with closing(Coordinator(self._url, env.read_token(self._files.coordinator.token), "")) as coordinator:
                pool = coordinator.pool(DEFAULT_POOL)
                if pool.num_queued or pool.num_free < pool.num_slots:
                    return True
                return coordinator.experiments(limit=1, state=_AT_WORK).num_found > 0
        except EverstepError:
            return True


class LocalAgent:
    """The pool's agent, kept alive by a thread of its own as long as it is open."""

    def __init__(self, files: LocalFiles, url: str, say: Say) -> None:
        self._files, self._url, self._say = files, url, say
        self._child: Child | None = None
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="local agent", daemon=True)

    def __enter__(self) -> LocalAgent:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_closing.set()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._child is not None:
                self._child.signal(number, is_for_group=False)
            self._thread.join(STOP_S)

    def _keep(self) -> None:
        # In this thread, because the kernel ends a child with the thread that started it.
        while not self._is_closing.is_set():
            try:
                with private_file.append(self._files.folder / "agent.log") as output:
                    self._child = Child.start(self._command(), output=output)
            except OSError as error:  # a full disk, no process left
                self._say(f"the agent cannot be started, trying again: {error}")
            else:
                ended = self._child.wait()
                if not self._is_closing.is_set():
                    self._say(f"the agent ended ({ended}) and is started again")
            self._is_closing.wait(_AGAIN_S)

    def _command(self) -> list[str]:
        options = {
            "--coordinator": self._url,
            "--token-file": str(self._files.coordinator.token),
            "--name": "local",
            "--slots": env.value(env.LOCAL_SLOTS) or "auto",
            "--folder": str(self._files.agent),
        }
        return [*own_command("pool", {}), "join", *(part for pair in options.items() for part in pair)]
