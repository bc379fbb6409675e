"""The voice for machines and tests: one JSON line per event, appended to the file named by EVERSTEP_EVENTS.

A line is one write to a file opened for append, so lines of several processes never mix.
`t` is CLOCK_MONOTONIC, comparable between the processes of a node. Without the variable, nothing is written.
Nobody's work depends on it: what cannot be written (a full disk, one that became read-only) is dropped and counted, and
the first time is told in the log."""

from __future__ import annotations

import json
import logging
import os
import time
from typing import Any

from everstep import env
from everstep.storage import private_file

log = logging.getLogger("everstep")

num_dropped = 0  # events of this process that were not written

_file: tuple[str, int, int] | None = None  # path, pid, descriptor
_is_torn = False  # the last line was cut short: the next one must not be taken for its end


def emit(event: str, **facts: Any) -> None:
    """Append one event; who speaks is taken from the environment unless given. Never raises."""
    try:
        _write({"event": event, "t": time.monotonic(), "pid": os.getpid(), "worker": env.worker(), **facts})
    except Exception as error:
        _drop(event, error)


def _write(event: dict[str, Any]) -> None:
    global _is_torn
    descriptor = _descriptor()
    if descriptor is None:
        return
    line = b"\n" * _is_torn + json.dumps(event, separators=(",", ":")).encode() + b"\n"
    written = os.write(descriptor, line)
    _is_torn = 0 < written < len(line) or (_is_torn and not written)
    if written < len(line):
        raise OSError(f"only {written} of {len(line)} bytes were written")


def _drop(event: str, error: Exception) -> None:
    global num_dropped
    num_dropped += 1
    if num_dropped == 1:
        log.warning("the event %s cannot be written to %s, and is dropped: %s", event, env.events_path(), error)


def _descriptor() -> int | None:
    global _file
    path = env.events_path()
    if path is None:
        return None
    if _file is None or _file[:2] != (path, os.getpid()):
        _file = (path, os.getpid(), private_file.descriptor(path, os.O_WRONLY | os.O_APPEND))
    return _file[2]
