"""Threads that wait inside torch in the background: forming a group, destroying one.

The interpreter must not end before they do: a thread that comes back from C++ into a finished interpreter aborts the
process. So each is interrupted (its connections are cut), and waited for at the end of the script."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_POKE_S = 0.1

_threads: list[tuple[threading.Thread, Callable[[], None]]] = []
_lock = threading.Lock()


def start(name: str, work: Callable[[], None], interrupt: Callable[[], None] = lambda: None) -> None:
    """`interrupt` makes it end sooner; it may be called more than once."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    with _lock:
        _threads[:] = [each for each in _threads if each[0].is_alive()]
        _threads.append((thread, interrupt))
        thread.start()


def wait(timeout_s: float) -> None:
    """Until all have ended."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with _lock:
            alive = [each for each in _threads if each[0].is_alive()]
        if not alive:
            return
        for _, interrupt in alive:
            interrupt()
        alive[0][0].join(_POKE_S)
