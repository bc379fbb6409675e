"""A job's background process: identified by pid, start time, and machine.

The pid may have been reused, and means nothing on another machine."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep.errors import UsageError
from everstep.platforms.base import Say
from everstep.process import ENDED, process_state, start_detached, started_at, wait_for_end
from everstep.storage import private_file

_CANCEL_S = 30.0  # more than the nodes' grace


def start(command: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
    """Its pid. Its output is appended to the log, which only its owner can read."""
    output = private_file.descriptor(log, os.O_WRONLY | os.O_APPEND)
    try:
        return start_detached(command, env=environment, output=output, descriptors=())
    finally:
        os.close(output)


def describe(pid: int, grace_s: float) -> dict[str, Any]:
    """What a record needs to identify it."""
    return {"pid": pid, "started": started_at(pid), "grace_s": grace_s, "host": socket.gethostname()}


def other_host(natives: Mapping[str, Any]) -> str:
    """Its machine, if not this one; home folders are often shared."""
    host = str(natives.get("host", ""))
    return "" if host == socket.gethostname() else host


def is_alive(natives: Mapping[str, Any]) -> bool:
    pid = int(natives["pid"])
    if other_host(natives):
        return False
    if process_state(pid) == ENDED:
        _reap(pid)
        return False
    return bool(started_at(pid) == natives["started"])


def _reap(pid: int) -> None:
    """A program that submits jobs and lives on is their parent."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # another program has submitted it
        pass


def end(natives: Mapping[str, Any], say: Say) -> None:
    """Return once it is gone, with all that it started."""
    if host := other_host(natives):
        message = f"it runs on {host}; this is {socket.gethostname()}"
        raise UsageError(message, hint=f"`everstep cancel` on {host}", code="job-on-another-host")
    if not is_alive(natives):
        return
    pid, patience_s = int(natives["pid"]), float(natives["grace_s"]) + _CANCEL_S
    _send(pid, signal.SIGTERM, is_for_group=False)
    if not wait_for_end(pid, patience_s):
        say(f"it did not end within {patience_s:.0f} s; killing it")
        _send(pid, signal.SIGKILL, is_for_group=True)
        wait_for_end(pid, _CANCEL_S)


def _send(pid: int, number: int, *, is_for_group: bool) -> None:
    try:
        (os.killpg if is_for_group else os.kill)(pid, number)
    except ProcessLookupError:  # it was faster
        pass
