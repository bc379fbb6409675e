"""The coordinator's own time: while its process is stopped or starved, hardly any time passes.

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


class Clock:
    def __init__(self, read: Now = time.monotonic) -> None:
        self._read = read
        self._seen = read()
        self._away_s = 0.0
        self._back_at = float("-inf")

    def now(self) -> float:
        """Never runs backward, and never ahead of real time."""
        seen = self._read()
        away_s = seen - self._seen - LONGEST_GAP_S
        self._seen = seen
        if away_s > 0:
            self._away_s += away_s
        if away_s > AWAY_S:
            self._back_at = seen - self._away_s
            log.info("the coordinator stalled for %.1f s; all leases extended", away_s)
        return seen - self._away_s

    def was_away(self) -> bool:
        """Recently: a caller that hung up meanwhile may be well."""
        return self.now() < self._back_at + BACK_S

    async def tick(self) -> None:
        """Read it for as long as this runs."""
        while True:
            self.now()
            await asyncio.sleep(TICK_S)
