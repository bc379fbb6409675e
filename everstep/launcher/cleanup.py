"""Sweep up after an agent that was killed.

The kernel ends workers with their agent (process.py), but not what they have started themselves. So a process of its
own knows the groups of all running workers, waits for the agent's end, however that comes, and kills them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from types import TracebackType

_SWEEP = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


class Broom:
    """At work from `with` until its end, or the end of this process."""

    def __enter__(self) -> Broom:
        # In a session of its own: what is sent to the agent's group must not end it before the agent.
        self._sweeper = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _SWEEP],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._sweeper.communicate()

    def watch(self, group: int) -> None:
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        """It was swept: the number may soon be another's."""
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        assert self._sweeper.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # somebody has killed it; training goes on without
            self._sweeper.stdin.write(line.encode())
            self._sweeper.stdin.flush()
