"""A call that gets nowhere is given up: a connection whose other end has vanished tells nobody, and waits for ever.

The call runs in a thread of its own and says whenever it has got on. One that is given up is told so the next time that
it says something, and must then leave nothing behind. Knows nothing of storage."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")

GotOn = Callable[[], None]


class Stalled(Exception):
    """It has not got on for too long."""


def watched(call: Callable[[GotOn], T], stall_s: float) -> T:
    """What the call returns or raises; Stalled if it has not got on for so long."""
    watch, done = _StallWatch(stall_s), Future[T]()

    def work() -> None:
        try:
            done.set_result(call(watch.got_on))
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
        self.stalled = Stalled(f"it did not get on for {stall_s:.0f} s")

    def got_on(self) -> None:
        if self.is_given_up:
            raise self.stalled
        self.moved_at = time.monotonic()
