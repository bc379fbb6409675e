"""Time as the coordinator lives it: while its process is stopped, or does not get its turn, hardly any time passes.

Whoever was silent meanwhile may have called all the time, with nobody there to hear it. Leases and deadlines run by
this clock, so that nobody is lost for a coordinator that was away. It must be looked at now and then: see `tick`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

Now = Callable[[], float]

TICK_S = 0.1
LONGEST_GAP_S = 0.2  # between two looks; what is beyond that does not count
AWAY_S = 1.0  # callers may have given up waiting, and call again …
BACK_S = 5.0  # … within so long


class Clock:
    def __init__(self, read: Now = time.monotonic) -> None:
        self._read = read
        self._seen = read()
        self._away_s = 0.0
        self._back_at = float("-inf")

    def now(self) -> float:
        """Never goes back, never runs ahead of the clock on the wall."""
        seen = self._read()
        away_s = seen - self._seen - LONGEST_GAP_S
        self._seen = seen
        if away_s > 0:
            self._away_s += away_s
        if away_s > AWAY_S:
            self._back_at = seen - self._away_s
            log.info("the coordinator did not get on for %.1f s: everybody has so much longer", away_s)
        return seen - self._away_s

    def was_away(self) -> bool:
        """Lately: that somebody has hung up meanwhile says nothing about them."""
        return self.now() < self._back_at + BACK_S

    async def tick(self) -> None:
        """Look at it for as long as this runs."""
        while True:
            self.now()
            await asyncio.sleep(TICK_S)
