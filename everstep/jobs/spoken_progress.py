"""Say how far a long piece of work has come: a line every few seconds, and none for work that is quick."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

EVERY_S = 5.0


class SpokenProgress:
    def __init__(
        self, tell: Callable[[str], None], what: str, total: int, unit: str, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Its lines: metrics: 3 of 64 trials, 1,234,567 points"""
        self._tell, self._what, self._total, self._unit, self._now = tell, what, total, unit, now
        self._num_done, self._counts = 0, Counter[str]()
        self._told_at = now()

    def add(self, number: int, what: str) -> None:
        self._counts[what] += number
        self._speak()

    def done(self) -> None:
        self._num_done += 1
        self._speak()

    def _speak(self) -> None:
        if self._now() >= self._told_at + EVERY_S:
            self._told_at = self._now()
            counts = "".join(f", {number:,} {what}" for what, number in self._counts.items())
            self._tell(f"{self._what}: {self._num_done} of {self._total} {self._unit}{counts}")
