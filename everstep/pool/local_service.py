"""The local service: a coordinator and a pool's agent on this machine, in the background, for this user's experiments.

The first command that needs the service starts it, and the service restarts a part that is killed. It ends by itself
when no experiment is active and no command uses it. Its whole state is in its store: after kill -9 of everything, the
next command starts it again, and experiments continue.

Trials run with the Python environment and the variables of the command that started the service."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from everstep import env
from everstep.client.calls import Coordinator
from everstep.errors import EverstepError, PermanentError, UsageError
from everstep.launcher.local_coordinator import CoordinatorFiles, LocalCoordinator, earlier_port, private_directory
from everstep.launcher.logs import tail
from everstep.pool.machine_kind import num_slots
from everstep.pool.temporary_nodes import AT_WORK
from everstep.process import Child, own_command, process_state, start_detached, started_at, wait_for_end
from everstep.storage import private_file
from everstep.waiting import wait_until
from everstep.wire.pool import DEFAULT_POOL

if TYPE_CHECKING:
    from everstep.pool.platform_pools import PlatformPools

Say = Callable[[str], None]

READY_S = 120.0
STOP_S = 120.0  # trials save before they leave
_STOPPED_S = 240.0  # here, and on the nodes of platforms
_NUM_TRIES = 3
_LOOK_S = 1.0
_AGAIN_S, _LONGEST_AGAIN_S = 0.5, 30.0  # from the end of the agent to the next: longer each time if it fails at once
_STEADY_S = 60.0  # an agent that lasts this long has not failed at once
_LOOKED_AT_S = 2.0
SAID = "everstep: "  # how lines for people begin in the agent's log

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
    def pools(self) -> Path:
        """The folder of pools on platforms, by name."""
        return self.folder / "pools"

    @property
    def agent(self) -> Path:
        return self.folder / "agent"

    @property
    def log(self) -> Path:
        return self.folder / "service.log"

    @property
    def agent_log(self) -> Path:
        return self.folder / "agent.log"

    @property
    def problem(self) -> Path:
        """Why the agent has failed, while it is not started again."""
        return self.folder / "agent.problem"

    @property
    def state(self) -> Path:
        """The file with the ServiceState, as long as the service runs."""
        return self.folder / "service.json"

    @property
    def start(self) -> Path:
        """The lock that is held while the service starts or ends."""
        return self.folder / "start.lock"

    @property
    def running(self) -> Path:
        """The lock that the service holds."""
        return self.folder / "service.lock"

    @property
    def users(self) -> Path:
        """The lock that the commands which use the service share."""
        return self.folder / "users.lock"


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceState:
    pid: int
    started_at: str  # as `process.started_at` returns it
    prefix: str  # of the Python environment
    num_slots: int

    @classmethod
    def of_this_process(cls) -> ServiceState:
        pid = os.getpid()
        return cls(pid=pid, started_at=started_at(pid), prefix=_prefix(), num_slots=num_slots(_slots()))

    @classmethod
    def read(cls, files: LocalFiles) -> ServiceState | None:
        """The state of the running service; None if there is none."""
        try:
            found = cls(**json.loads(files.state.read_text()))
        except (OSError, ValueError, TypeError):
            return None
        return found if started_at(found.pid) == found.started_at else None


def _prefix() -> str:
    return os.path.realpath(sys.prefix)


def _slots() -> str:
    return env.value(env.LOCAL_SLOTS) or "auto"


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


def claim_local(say: Say) -> None:
    """Before trials begin: a service of another Python environment is replaced, unless its experiments are active."""
    files = LocalFiles.of_user()
    state, ours = ServiceState.read(files), _prefix()
    if state is None or state.prefix == ours:
        return
    if (url := _await_ready(files)) and has_work(files, url):
        raise UsageError(
            f"the local service is running experiments with the Python environment {state.prefix}, "
            f"but this command's is {ours}",
            hint=f"use {state.prefix}, or wait for those experiments, or end the service with `everstep pool stop`: "
            "active experiments then continue with the environment that starts it next",
            code="local-service-other-environment",
        )
    say(f"restarting the local service: its Python environment is {state.prefix}, this command's is {ours}")
    stop_local(lambda _line: None)


def local_slots() -> int:
    """The number of slots in the service's pool; 0 if it is not running."""
    state = ServiceState.read(LocalFiles.of_user())
    return state.num_slots if state is not None else 0


def running_service() -> tuple[str, Path] | None:
    """Like `connect_local`, but only if the service is running."""
    files = LocalFiles.of_user()
    if not files.folder.is_dir() or not is_running(files):
        return None
    url = _await_ready(files)
    return (url, files.coordinator.token) if url else None


def agent_problem() -> str:
    """Why this machine has no slots, if its agent has failed."""
    try:
        return LocalFiles.of_user().problem.read_text()
    except OSError:
        return ""


def stop_local(say: Say) -> bool:
    """End the service; trials save first. False: it was not running."""
    files = LocalFiles.of_user()
    found = ServiceState.read(files)
    if not files.folder.is_dir() or not is_running(files) or found is None:
        return False
    say("stopping the local service; trials save first")
    os.kill(found.pid, signal.SIGTERM)
    if not wait_for_end(found.pid, _STOPPED_S):
        message = f"the local service (pid {found.pid}) did not stop within {_STOPPED_S:.0f} s"
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
    with private_file.append_log(files.log) as output:
        folder = files.folder.resolve()
        command = own_command("local-service", {"--folder": str(folder)})
        # Not in the user's folder, from which Python would import modules such as queue.py.
        pid = start_detached(command, env=environment, output=output, descriptors=[], cwd=folder)
    is_up = wait_until(
        lambda: is_running(files) or process_state(pid) == "ended", READY_S, "the local service", pause_s=0.01
    )
    if not is_up or not is_running(files):
        raise _not_started(files)


_OF_OTHERS = (env.TOKEN, env.TOKEN_FILE, env.STORE, env.COORDINATOR, env.JOB, env.WORKER, env.EXPERIMENT, env.TRIAL)


def _await_ready(files: LocalFiles) -> str:
    """The service's URL, once it answers; "" if it ends, such as after a request."""

    def look() -> str:
        try:
            url = here(files.coordinator.ready.read_text().strip())
            with closing(Coordinator(url, env.read_token(files.coordinator.token), "")) as coordinator:
                coordinator.check()
            return url
        except (OSError, EverstepError):  # not there yet; at an earlier service's address, any program may answer
            return ""

    url = wait_until(lambda: look() or not is_running(files), READY_S, "the local service", pause_s=0.02)
    return url if isinstance(url, str) else ""


def here(url: str) -> str:
    """The coordinator's URL on this machine, also if it listens on all addresses for nodes elsewhere."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def _not_started(files: LocalFiles) -> PermanentError:
    problem = "\n  ".join(["the local service did not start", *tail(files.log)])
    return PermanentError(problem, hint=f"see {files.log}", code="local-service-not-started")


def _try_lock(lock: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# --- the service itself -----------------------------------------------------------------------------


def serve_local(folder: Path, say: Say) -> int:
    """Run until asked to end, or idle for long enough."""
    files = LocalFiles(folder=private_directory(folder))
    from everstep.jobs.node import asked_to_end  # late: commands only start the service, or look for it
    from everstep.pool.platform_pools import PlatformPools

    with _ending(files) as may_end, private_file.append(files.running) as lock:
        # For a moment: commands that look whether it is running share the lock while they do.
        if not wait_until(lambda: _try_lock(lock, fcntl.LOCK_EX), _LOOKED_AT_S, "the lock of the service"):
            say("it is already running")
            return 0
        os.chdir(files.folder)
        files.problem.unlink(missing_ok=True)
        private_file.write_json(files.state, asdict(ServiceState.of_this_process()))
        private_directory(files.coordinator.directory)
        port = earlier_port(files.coordinator)
        with (
            asked_to_end() as asked,
            LocalCoordinator(files.coordinator, say=say, port=port) as coordinator,
            LocalAgent(files, coordinator.url, say),
            PlatformPools(files.pools, files.coordinator.token, coordinator, say) as pools,
        ):
            _stay(asked, may_end, IdleWatch(files, coordinator.url), pools)
        files.state.unlink(missing_ok=True)
    return 0


def _stay(asked: threading.Event, may_end: Callable[[], bool], watch: IdleWatch, pools: PlatformPools) -> None:
    while not asked.wait(_LOOK_S):
        has_nodes = pools.turn()
        if watch.is_over() and not has_nodes and may_end():
            return


@contextmanager
def _ending(files: LocalFiles) -> Iterator[Callable[[], bool]]:
    """The last check before the end: True if no command uses the service. New commands wait until it has ended, then
    start it again."""
    with private_file.append(files.start) as lock, private_file.append(files.users) as users:

        def may_end() -> bool:
            if not _try_lock(lock, fcntl.LOCK_EX):
                return False
            if _try_lock(users, fcntl.LOCK_EX):
                return True
            fcntl.flock(lock, fcntl.LOCK_UN)  # one came meanwhile; the next one must not wait for its end
            return False

        yield may_end


class IdleWatch:
    """Whether the service is no longer needed."""

    def __init__(self, files: LocalFiles, url: str) -> None:
        self._files, self._url = files, url
        self._idle_s = env.local_idle_s()
        self._used_at = time.monotonic()

    def is_over(self) -> bool:
        if self._has_users() or has_work(self._files, self._url):
            self._used_at = time.monotonic()
        return time.monotonic() - self._used_at >= self._idle_s

    def _has_users(self) -> bool:
        with private_file.append(self._files.users) as lock:
            return not _try_lock(lock, fcntl.LOCK_EX)


def has_work(files: LocalFiles, url: str) -> bool:
    """Whether an experiment is active or ending, or the coordinator cannot tell."""
    try:
        with closing(Coordinator(url, env.read_token(files.coordinator.token), "")) as coordinator:
            pool = coordinator.pool(DEFAULT_POOL)
            if pool.num_queued or pool.num_free < pool.num_slots:
                return True
            return coordinator.experiments(limit=1, state=AT_WORK).num_found > 0
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
        pause_s = _AGAIN_S
        while not self._is_closing.is_set():
            began = time.monotonic()
            problem, is_failed = self._run_once()
            if self._is_closing.is_set():
                return
            if not is_failed or time.monotonic() - began >= _STEADY_S:
                pause_s = _AGAIN_S
            self._say(f"{problem}; starting it again in {pause_s:g} s")
            with suppress(OSError):  # a full disk
                private_file.write_text(self._files.problem, problem)
            self._is_closing.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_AGAIN_S) if is_failed else _AGAIN_S

    def _run_once(self) -> tuple[str, bool]:
        """Run the agent once. Returns how it ended, and whether it is likely to end in the same way again."""
        try:
            with private_file.append_log(self._files.agent_log) as output:
                self._child = Child.start(self._command(), output=output)
        except OSError as error:  # a full disk, no process left
            return f"the agent cannot be started: {error}", True
        ended = self._child.wait()
        assert ended is not None
        said = [line for line in tail(self._files.agent_log) if line.startswith(SAID)]
        because = f": {said[-1].removeprefix(SAID)}" if said and ended.code > 0 else ""
        return f"the agent ended ({ended}){because}", ended.code > 0

    def _command(self) -> list[str]:
        options = {
            "--coordinator": self._url,
            "--token-file": str(self._files.coordinator.token),
            "--name": "local",
            "--slots": _slots(),
            "--folder": str(self._files.agent),
        }
        return [*own_command("pool", {}), "join", *(part for pair in options.items() for part in pair)]
