"""The local service of a user who is a test: a home of its own, and kill -9 of its parts."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from everstep import env
from everstep.client.calls import Coordinator
from everstep.launcher.local_coordinator import private_directory
from everstep.pool.local_service import LocalFiles, ServiceState, is_running
from everstep.storage import private_file
from lab.command import EVERSTEP, run, until
from lab.pool_stage import Trials
from lab.processes import children

_Staged = TypeVar("_Staged", bound="LocalStage")

CONNECT = """
import sys
from everstep.pool.local_service import connect_local
print(*connect_local(lambda line: print(line, file=sys.stderr)))
"""


class LocalStage:
    def __init__(self, folder: Path, idle_s: float = 600.0, **more: str) -> None:
        self.folder, self.files = folder, LocalFiles(folder=folder / "home/local")
        self.env = {"EVERSTEP_HOME": str(folder / "home"), "EVERSTEP_LOCAL_IDLE_S": str(idle_s), **more}
        self.trials = Trials(folder, self.coordinator)
        self.url = ""

    def __enter__(self: _Staged) -> _Staged:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def connect(self) -> str:
        """As a command that ends at once; its URL."""
        done = run(sys.executable, "-c", CONNECT, folder=self.folder, **self.env)
        assert done.returncode == 0, done.stderr + self.log
        self.url, token = done.stdout.split()
        assert Path(token) == self.files.coordinator.token
        return self.url

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """As by a command that stays: the service does not end meanwhile."""
        private_directory(self.files.folder)
        with private_file.append(self.files.users) as users:
            fcntl.flock(users, fcntl.LOCK_SH)
            yield

    def type(self, *words: str) -> str:
        done = run(*EVERSTEP, *words, folder=self.folder, **self.env)
        assert done.returncode == 0, done.stdout + done.stderr + self.log
        return done.stdout + done.stderr

    def coordinator(self, job: str = "") -> Coordinator:
        return Coordinator(self.url, env.read_token(self.files.coordinator.token), job)

    @property
    def is_running(self) -> bool:
        return self.files.folder.is_dir() and is_running(self.files)

    @property
    def log(self) -> str:
        return self.files.log.read_text() if self.files.log.exists() else ""

    @property
    def pid(self) -> int:
        state = ServiceState.read(self.files)
        assert state is not None, self.log
        return state.pid

    def part(self, word: str) -> int:
        """The process of the service whose command has this word."""
        found: list[int] = []

        def look() -> bool:
            found[:] = [pid for pid in children(self.pid) if word in _command(pid)]
            return len(found) == 1

        until(look, lambda: self.log)
        return found[0]

    def end(self) -> None:
        if self.is_running and (state := ServiceState.read(self.files)) is not None:
            os.kill(state.pid, signal.SIGKILL)
            until(lambda: not self.is_running)


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []
