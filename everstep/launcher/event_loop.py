"""One place to wait: for descriptors, for what other threads and signal handlers post, and for deadlines.

Everything is done in the thread that calls `turn`, one thing after another, so what it owns needs no locks."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

Act = Callable[[], None]


class HasDescriptor(Protocol):
    def fileno(self) -> int: ...


class EventLoop:
    def __init__(self) -> None:
        self._timers: list[tuple[float, Act]] = []
        self._inbox: deque[Act] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ, self._empty_inbox)
        # For signal.set_wakeup_fd: a signal that another thread gets must wake the one that turns.
        self._alarm, self._wakeup = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._alarm, selectors.EVENT_READ, lambda: os.read(self._alarm, 4096))

    def watch(self, thing: HasDescriptor, act: Act) -> None:
        """Do it whenever the descriptor is readable."""
        self._selector.register(thing, selectors.EVENT_READ, act)

    def forget(self, thing: HasDescriptor) -> None:
        self._selector.unregister(thing)

    def post(self, act: Act) -> None:
        """Have it done in the next turn; from any thread or signal handler."""
        self._inbox.append(act)
        os.eventfd_write(self._wake, 1)

    def after(self, delay_s: float, act: Act) -> None:
        self._timers.append((time.monotonic() + delay_s, act))

    @contextmanager
    def signals(self, numbers: Sequence[int], act: Callable[[int], None]) -> Iterator[None]:
        """Do it for each of these signals, unless it is ignored (nohup). From the main thread."""

        def handle(number: int, frame: FrameType | None) -> None:
            self.post(lambda: act(number))

        before = {number: signal.getsignal(number) for number in numbers}
        wakeup = signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        for number, handler in before.items():
            if handler != signal.SIG_IGN:
                signal.signal(number, handle)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)

    def turn(self) -> None:
        """Wait until there is something to do, and do it."""
        timeout_s = max(0.0, min(due for due, _ in self._timers) - time.monotonic()) if self._timers else None
        for key, _ in self._selector.select(timeout_s):
            key.data()
        now = time.monotonic()
        overdue = [act for due, act in self._timers if due <= now]
        self._timers = [timer for timer in self._timers if timer[0] > now]
        for act in overdue:
            act()

    def _empty_inbox(self) -> None:
        os.eventfd_read(self._wake)
        while self._inbox:
            self._inbox.popleft()()
