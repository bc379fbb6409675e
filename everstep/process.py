"""The one door to child processes: start, watch, signal, and leave none behind.

A child leads its own session, so that a signal reaches all it started and a terminal's Ctrl-C does not.
It dies with its parent, kill -9 included. Its end is a readable file descriptor: no polling, no lost pid.
Linux only (pidfd, /proc). Knows nothing of workers."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

RUNNING, STOPPED, ENDED = "running", "stopped", "ended"
NOWHERE = subprocess.DEVNULL  # as `output`

_STATE, _PARENT, _FLAGS, _STARTED, _EXIT_STATUS = 0, 1, 6, 19, 49  # of /proc/PID/stat, counted after the name
_IS_EXITING = 0x4

# Runs before the command, in its process, which from now on dies with its parent. Python code between fork and exec
# would not be safe in a process with threads, so this is a separate program (15 ms). The parent may have died
# before the request was made; then no signal would come.
_GUARD = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    os._exit(0)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as problem:
    print(f"{sys.argv[2]}: {problem.strerror}", file=sys.stderr)
    os._exit(127)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exit:
    """How a process ended; a negative code is the signal that ended it."""

    code: int

    @property
    def is_good(self) -> bool:
        return self.code == 0

    @property
    def signal(self) -> str:
        """The signal's name, "" if none."""
        if self.code >= 0:
            return ""
        try:
            return signal.Signals(-self.code).name
        except ValueError:  # real-time signals have numbers only
            return f"signal {-self.code}"

    def __str__(self) -> str:
        return f"killed by {self.signal}" if self.signal else f"exit code {self.code}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The output of a short command."""

    exit: Exit
    text: str
    errors: str


class Child:
    """A child process. Start it from a thread that lives as long as the child should: the kernel ends it with that."""

    def __init__(self, pid: int, descriptor: int, collect: Callable[[], int]) -> None:
        """`descriptor` is its pidfd, ours from now on. `collect` is called once, when it has ended: it gives the exit
        code, and only then may the number be another's."""
        self.pid = pid
        self._descriptor = descriptor
        self._collect = collect
        self._exit: Exit | None = None

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        output: IO[bytes] | int | None = None,
        errors: IO[bytes] | int | None = None,
        cwd: str | Path | None = None,
        descriptors: Sequence[int] = (),
    ) -> Child:
        """Start `command`; stdout goes to `output`, stderr to `errors` or else to the same, stdin is empty. It inherits
        `descriptors`."""
        guarded = [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid()), *command]
        popen = _popen(guarded, env=env, output=output, errors=errors, cwd=cwd, descriptors=descriptors)
        descriptor = os.pidfd_open(popen.pid)

        def collect() -> int:
            popen.returncode = collect_exit(descriptor)
            return popen.returncode

        return cls(popen.pid, descriptor, collect)

    def fileno(self) -> int:
        """Readable when the process has ended: for select and selectors."""
        return self._descriptor

    @property
    def state(self) -> str:
        return ENDED if self._exit else process_state(self.pid)

    def signal(self, number: int, *, is_for_group: bool = True) -> None:
        """Send a signal to the process and all it started; to one that has ended, do nothing."""
        if self._exit is not None:
            return
        # Until it is reaped its pid cannot be another's, so neither call can hit a stranger.
        try:
            if is_for_group:
                os.killpg(self.pid, number)
            else:
                signal.pidfd_send_signal(self._descriptor, number)
        except ProcessLookupError:
            pass

    def wait(self, timeout_s: float | None = None) -> Exit | None:
        """Its end, or None when the time is up first. What it started and left behind is killed."""
        if self._exit is None and _is_readable(self._descriptor, timeout_s):
            self._exit = self._reap()
        return self._exit

    def kill(self) -> Exit:
        self.signal(signal.SIGKILL)
        ended = self.wait()
        assert ended is not None
        return ended

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def _reap(self) -> Exit:
        self.signal(signal.SIGKILL)  # the group, while the ended leader still holds the number
        code = self._collect()
        os.close(self._descriptor)
        self._descriptor = -1
        return Exit(code=code)


def ask(command: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> Answer:
    """Run a short command to its end. Raises OSError if there is no such command, TimeoutError if it takes longer."""
    try:
        done = subprocess.run(
            command,
            env=dict(env) if env is not None else None,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{command[0]} did not end within {timeout_s:.0f} s") from None
    return Answer(
        exit=Exit(code=done.returncode),
        text=done.stdout.decode(errors="replace"),
        errors=done.stderr.decode(errors="replace"),
    )


def own_command(name: str, options: Mapping[str, str]) -> list[str]:
    """`everstep NAME` with these options, by this very Python."""
    return [sys.executable, "-u", "-m", "everstep", name, *(part for pair in options.items() for part in pair)]


def program_command(module: str, *arguments: str) -> list[str]:
    """Run a module's `main()`. The folder that it is started in must not be on its path: the modules there are the
    user's."""
    safe = "import sys; getattr(sys.flags, 'safe_path', False) or sys.path.pop(0)"
    return [sys.executable, "-u", "-c", f"{safe}; from {module} import main; main()", *arguments]


def kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def start_detached(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    output: IO[bytes] | int,
    descriptors: Sequence[int],
    cwd: Path | None = None,
) -> int:
    """Start a process that outlives us and must end by itself: its pid."""
    popen = _popen(command, env=env, output=output, errors=None, cwd=cwd, descriptors=descriptors)
    popen.returncode = 0  # never asked for; without this, Python would wait for its end
    return popen.pid


def reap_detached(pid: int) -> None:
    """Release the pid of a detached process that is about to end, while we are still its parent."""
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        pass


class Orphans:
    """Processes that lost their parent and became our children: process 1 of a container gets all of them. A process
    that has ended but was not waited for stays as a zombie, until no more processes can be started."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, str]] = set()

    def reap(self) -> int:
        """Release those that had ended at the last look already: children of this process are reaped at once by the
        code that started them. Returns how many they were."""
        ended = {(pid, started_at(pid)) for pid in _zombies()}
        old, self._seen = ended & self._seen, ended
        for pid, _ in old:
            reap_detached(pid)
        return len(old)


def _zombies() -> Iterator[int]:
    """Our children that have ended."""
    for path in Path("/proc").glob("[0-9]*"):
        fields = _stat(int(path.name))
        if fields is not None and fields[_STATE] == "Z" and int(fields[_PARENT]) == os.getpid():
            yield int(path.name)


def _popen(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None,
    output: IO[bytes] | int | None,
    errors: IO[bytes] | int | None,
    cwd: str | Path | None,
    descriptors: Sequence[int],
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env=dict(env) if env is not None else None,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors if errors is not None else subprocess.STDOUT if output is not None else None,
        cwd=cwd,
        start_new_session=True,
        pass_fds=descriptors,
    )


def collect_exit(descriptor: int, options: int = 0) -> int:
    """The exit code of a child that has ended, by its pidfd; a negative one is the signal that ended it.
    With os.WNOWAIT as `options` it stays there to be asked again."""
    result = os.waitid(os.P_PIDFD, descriptor, os.WEXITED | options)
    assert result is not None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


def ending_code(pid: int) -> int | None:
    """The exit code of a process that is about to end and cannot be stopped from it; None if it is not, or is gone."""
    fields = _stat(pid)
    if fields is None or not int(fields[_FLAGS]) & _IS_EXITING:
        return None
    status = int(fields[_EXIT_STATUS])
    return -(status & 0x7F) if status & 0x7F else status >> 8


def process_state(pid: int) -> str:
    """RUNNING, STOPPED (SIGSTOP, a debugger) or ENDED (gone, or not yet reaped)."""
    fields = _stat(pid)
    if fields is None or fields[_STATE] in "ZX":
        return ENDED
    return STOPPED if fields[_STATE] in "Tt" else RUNNING


def started_at(pid: int) -> str:
    """Its start by the kernel's clock, since the pid may be reused one day; "" if there is no such process."""
    fields = _stat(pid)
    return fields[_STARTED] if fields is not None else ""


def _stat(pid: int) -> list[str] | None:
    """The fields after the name, which may hold anything, ")" included; None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def wait_for_end(pid: int, timeout_s: float) -> bool:
    """Whether the process, not necessarily ours, has ended within the time."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return _is_readable(descriptor, timeout_s)
    finally:
        os.close(descriptor)


def _is_readable(descriptor: int, timeout_s: float | None) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))
