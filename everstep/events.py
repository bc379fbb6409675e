"""The voice for machines and tests: one JSON line per event, appended to the file named by EVERSTEP_EVENTS.

A line is one write to a file opened for append, so lines of several processes never mix.
`t` is CLOCK_MONOTONIC, comparable between the processes of a node. Without the variable, nothing is written."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from everstep import env

_file: tuple[str, int, int] | None = None  # path, pid, descriptor


def emit(event: str, **facts: Any) -> None:
    """Append one event; who speaks is taken from the environment unless given."""
    descriptor = _descriptor()
    if descriptor is None:
        return
    line = {"event": event, "t": time.monotonic(), "pid": os.getpid(), "worker": env.worker(), **facts}
    os.write(descriptor, json.dumps(line, separators=(",", ":")).encode() + b"\n")


def _descriptor() -> int | None:
    global _file
    path = env.events_path()
    if path is None:
        return None
    if _file is None or _file[:2] != (path, os.getpid()):
        _file = (path, os.getpid(), os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600))
    return _file[2]
