"""Whether a job of a batch scheduler is over, and has written all its lines."""

from __future__ import annotations

import time
from collections.abc import Callable

from everstep.errors import EverstepError


class QueueWatch:
    """Asks the scheduler at intervals: many users may follow their jobs. Repeats failed calls for a while, because a
    busy scheduler often does not answer. `has_said_so`: the job reported its end; `is_there`: part of it still runs
    and may write."""

    def __init__(
        self,
        *,
        has_said_so: Callable[[], bool],
        is_over: Callable[[], bool],
        is_there: Callable[[], bool],
        every_s: float = 5.0,
        last_every_s: float = 0.5,  # after the final report …
        last_lines_s: float = 10.0,  # … for at most this long: a shared file system shows lines late
        patience_s: float = 600.0,
    ) -> None:
        self._has_said_so, self._is_over, self._is_there = has_said_so, is_over, is_there
        self._every_s, self._last_every_s = every_s, last_every_s
        self._last_lines_s, self._patience_s = last_lines_s, patience_s
        self._ask_at = self._answered_at = time.monotonic()
        self._said_at: float | None = None
        self._has_ended = False

    def has_ended(self) -> bool:
        now = time.monotonic()
        if self._said_at is None and self._has_said_so():
            self._said_at = self._ask_at = now
        if self._said_at is not None and now > self._said_at + self._last_lines_s:
            self._has_ended = True
        if not self._has_ended and now >= self._ask_at:
            self._has_ended = self._ask()
            self._ask_at = time.monotonic() + (self._every_s if self._said_at is None else self._last_every_s)
        return self._has_ended

    def _ask(self) -> bool:
        try:
            answer = self._is_over() if self._said_at is None else not self._is_there()
        except EverstepError:
            if self._said_at is None and time.monotonic() > self._answered_at + self._patience_s:
                raise
            return False
        self._answered_at = time.monotonic()
        return answer
