"""Give up a call that makes no progress: a connection whose other end has vanished reports nothing and waits forever.

The call runs in its own thread and reports its progress. Once it is given up, its next report raises `Stalled`, and it
must then leave nothing behind. Knows nothing of storage."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")

Progress = Callable[[], None]


class Stalled(Exception):
    """The call has made no progress for too long."""


def watched(call: Callable[[Progress], T], stall_s: float) -> T:
    """Return the call's result or raise its error; Stalled after `stall_s` without progress."""
    watch, done = _StallWatch(stall_s), Future[T]()

    def work() -> None:
        try:
            done.set_result(call(watch.report))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=work, name="everstep storage call", daemon=True).start()
    while not done.done():
        if (left_s := watch.moved_at + stall_s - time.monotonic()) <= 0:
            watch.is_given_up = True
            raise watch.stalled
        wait([done], left_s)
    return done.result()


class _StallWatch:
    def __init__(self, stall_s: float) -> None:
        self.moved_at = time.monotonic()
        self.is_given_up = False
        self.stalled = Stalled(f"no progress for {stall_s:.0f} s")

    def report(self) -> None:
        if self.is_given_up:
            raise self.stalled
        self.moved_at = time.monotonic()
