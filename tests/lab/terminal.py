"""A terminal: `everstep run` on this machine, what it shows, what it tells, and what of it is still there."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from everstep.process import ENDED, Child, process_state
from everstep.testing.tape import Tape
from lab import nest

ROOT = Path(__file__).parents[2]
CALM_OPTIONS = ("--lease-s=60", "--arrive-s=60", "--stall-s=60")  # as stage.CALM: nobody is given up for being slow


def until(condition: Callable[[], bool], what: Callable[[], str], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.005)


class Run:
    """From `with` to its end; whatever is still there then is killed."""

    def __init__(
        self, *arguments: object, directory: Path, has_nursery: bool = False, shares_nursery: bool = False
    ) -> None:
        """The nursery imports torch, which few of our scripts need. For stories that are not about its own ends, one
        that they share will do."""
        self.directory, self._has_nursery = directory, has_nursery or shares_nursery
        self._env = nest.ONE_THREAD if shares_nursery else {"XDG_RUNTIME_DIR": str(directory)}
        shared = nest.AGENT_OPTIONS if shares_nursery else ()
        options = ["--heartbeat-s=0.2", *CALM_OPTIONS, *shared, *(str(each) for each in arguments)]
        self._command = [sys.executable, "-m", "everstep", "run", *options]
        self._log = directory / "terminal.log"
        self.tape = Tape(directory / "events.jsonl")

    def __enter__(self) -> Run:
        outer = {name: value for name, value in os.environ.items() if not name.startswith(("EVERSTEP_", "PET_"))}
        given = {"PYTHONPATH": str(ROOT), "EVERSTEP_EVENTS": str(self.directory / "events.jsonl"), "COLUMNS": "160"}
        given |= {} if self._has_nursery else {"EVERSTEP_NURSERY": "off"}
        with self._log.open("wb") as output:
            self.agent = Child.start(self._command, env=outer | given | self._env, output=output, cwd=self.directory)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.agent.kill()

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_said(self, pattern: str, num_times: int = 1) -> None:
        self.until(lambda: len(re.findall(pattern, self.said)) >= num_times, f"{pattern!r} {num_times} times")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        def is_over() -> bool:
            return condition() or self.agent.wait(0) is not None

        until(is_over, lambda: f"not in time: {what}\n{self.said}")
        assert condition(), f"the run ended before: {what}\n{self.said}"

    def finish(self, timeout_s: float = 100.0) -> int:
        ended = self.agent.wait(timeout_s)
        assert ended is not None, f"no end within {timeout_s:.0f} s\n{self.said}"
        return ended.code

    def signal(self, number: int) -> None:
        self.agent.signal(number, is_for_group=False)

    def kill(self, worker: str) -> None:
        os.kill(self.pid(worker), signal.SIGKILL)

    def pid(self, worker: str) -> int:
        return next(int(event["pid"]) for event in self.tape.read() if event.get("worker") == worker)


def children(pid: int) -> list[int]:
    """Not by /proc/PID/task/*/children: that skips some while others end."""
    stats = {int(stat.parent.name): _read(stat) for stat in Path("/proc").glob("[0-9]*/stat")}
    return [child for child, stat in stats.items() if stat and int(stat.rpartition(")")[2].split()[1]) == pid]


def coordinator_of(pid: int) -> int:
    """The one that this run has brought along."""
    (found,) = (child for child in children(pid) if "serve" in _command(child))
    return found


def nurseries_of(pid: int) -> list[int]:
    return [child for child in children(pid) if any("everstep.nursery" in part for part in _command(child))]


def _command(pid: int) -> list[str]:
    return _read(Path(f"/proc/{pid}/cmdline")).split("\0")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return ""


def are_gone(pids: list[int]) -> bool:
    return all(process_state(pid) == ENDED for pid in pids)


def num_descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def num_threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:"))) / 1024
