"""Clean up after an agent that was killed.

The kernel ends workers with their agent (process.py), but not the processes that workers have started. So a separate
process knows the groups of all running workers, waits for the end of the agent, and kills them."""

from __future__ import annotations

import contextlib
import os
import sys

from everstep.process import NOWHERE, reap_detached, start_detached

_SWEEP = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
groups = set()
for line in open(int(sys.argv[1])):
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


class Sweeper:
    """At work from `with` until its end, or the end of this process."""

    def __enter__(self) -> Sweeper:
        theirs, self._pipe = os.pipe()
        try:
            # In its own session: a signal to the agent's group must not end it before the agent.
            command = [sys.executable, "-I", "-S", "-c", _SWEEP, str(theirs)]
            self._pid = start_detached(command, output=NOWHERE, descriptors=[theirs])
        finally:
            os.close(theirs)
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._pipe)
        reap_detached(self._pid)

    def watch(self, group: int) -> None:
        self._send(f"+{group}\n")

    def forget(self, group: int) -> None:
        """The group has ended: its number may be reused soon."""
        self._send(f"-{group}\n")

    def _send(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # it was killed; training continues without it
            os.write(self._pipe, line.encode())
