"""The coordinator's own time: while its process is stopped, starved or behind with its calls, hardly any time passes.

A worker that seemed silent meanwhile may have called all the time, with no coordinator to hear it. Leases and deadlines
run by this clock, so that no worker is lost because the coordinator was away. It must be read regularly: see `tick`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

Now = Callable[[], float]

TICK_S = 0.1
LONGEST_GAP_S = 0.2  # between two readings; time beyond that does not count
AWAY_S = 1.0  # callers may have given up waiting, and call again …
BACK_S = 5.0  # … within this time


_PASSING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # also counts while the machine sleeps
_BEGAN = time.time() - time.clock_gettime(_PASSING)


def steady_time() -> float:
    """Time of day as it was when this process began, and what has passed since: for what must outlast a
    restart, and must not end when someone sets the machine's clock."""
    return _BEGAN + time.clock_gettime(_PASSING)


class Clock:
    def __init__(self, read: Now = time.monotonic, heard_until: Callable[[float], float] = lambda now: now) -> None:
        """`heard_until`: when the oldest call came that still waits to be heard; now, if none does."""
        self._read, self._heard_until = read, heard_until
        self._seen = self._heard = read()
        self._away_s = 0.0
        self._back_at = float("-inf")

    def now(self) -> float:
        """Never runs backward, and never ahead of real time."""
        seen = self._read()
        stalled_s = seen - self._seen - LONGEST_GAP_S
        heard = self._heard_until(seen)
        self._away_s += max(0.0, heard - self._heard - LONGEST_GAP_S)
        self._seen, self._heard = seen, heard
        if stalled_s > AWAY_S:
            self._back_at = heard - self._away_s
            log.info("the coordinator stalled for %.1f s; all leases extended", stalled_s)
        return heard - self._away_s

    def was_away(self) -> bool:
        """Recently: a caller that hung up meanwhile may be well."""
        return self.now() < self._back_at + BACK_S

    async def tick(self) -> None:
        """Read it for as long as this runs."""
        while True:
            self.now()
            await asyncio.sleep(TICK_S)
