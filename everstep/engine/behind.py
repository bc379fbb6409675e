"""Threads that wait inside torch behind the script's back: forming a group, destroying one.

The interpreter must not end before they do: a thread that comes back from C++ into a finished interpreter aborts the
process. So each is made to end (its connections are cut), and waited for at the end of the script."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_threads: list[threading.Thread] = []
_lock = threading.Lock()


def start(name: str, work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work, name=name, daemon=True)
    with _lock:
        _threads[:] = [each for each in _threads if each.is_alive()]
        _threads.append(thread)
        thread.start()


def wait(timeout_s: float) -> None:
    """Until all have ended. Whoever calls it has cut the connections that they wait on."""
    deadline = time.monotonic() + timeout_s
    while True:
        with _lock:
            alive = [each for each in _threads if each.is_alive()]
        if not alive or time.monotonic() > deadline:
            return
        alive[0].join(max(0.0, deadline - time.monotonic()))
