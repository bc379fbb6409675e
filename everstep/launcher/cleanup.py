"""Clean up after an agent that was killed.

The kernel ends workers with their agent (process.py), but not the processes that workers have started. So a separate
process knows the groups of all running workers, waits for the end of the agent, and kills them."""

from __future__ import annotations

import contextlib
import logging
import os

from everstep.process import NOWHERE, reap_detached, start_detached

log = logging.getLogger("everstep")

# For the shell, which starts in a tenth of the time that Python takes: every trial has a sweeper.
_SWEEP = """
trap '' TERM
groups=
while read -r line; do
    group=${line#?}
    kept=
    for each in $groups; do
        [ "$each" = "$group" ] || kept="$kept$each "
    done
    groups=$kept
    case $line in
        +*) groups="$groups$group " ;;
    esac
done <"/proc/self/fd/$1"
for group in $groups; do
    kill -s KILL -- "-$group"
done
"""


class Sweeper:
    """At work from `with` until its end, or the end of this process."""

    def __enter__(self) -> Sweeper:
        self._pid: int | None = None
        theirs, self._pipe = os.pipe()
        try:
            # In its own session: a signal to the agent's group must not end it before the agent.
            command = ["/bin/sh", "-c", _SWEEP, "everstep-sweeper", str(theirs)]
            self._pid = start_detached(command, output=NOWHERE, descriptors=[theirs])
        except OSError as problem:  # an image without a shell
            log.warning("if this agent is killed, processes that its workers have started may stay: %s", problem)
        finally:
            os.close(theirs)
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._pipe)
        if self._pid is not None:
            reap_detached(self._pid)

    def watch(self, group: int) -> None:
        self._send(f"+{group}\n")

    def forget(self, group: int) -> None:
        """The group has ended: its number may be reused soon."""
        self._send(f"-{group}\n")

    def _send(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # it was killed; training continues without it
            os.write(self._pipe, line.encode())
