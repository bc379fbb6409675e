"""How many slot-seconds each person or experiment has used lately: use of a minute ago counts about a third.

Pure: time comes in as an argument."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from math import exp
from typing import Generic, TypeVar

WINDOW_S = 60.0
_FORGOTTEN = 1e-6

Name = TypeVar("Name", bound=Hashable)


class RecentUse(Generic[Name]):
    def __init__(self) -> None:
        self._used: dict[Name, float] = {}
        self._held: dict[Name, int] = {}
        self._at = 0.0

    def note(self, held: Mapping[Name, int], now: float) -> None:
        """From now on, they hold this many slots."""
        self._used, self._held, self._at = self.used(now), dict(held), max(now, self._at)

    def used(self, now: float) -> dict[Name, float]:
        """Slot-seconds used; older ones count less."""
        kept = exp(-max(now - self._at, 0.0) / WINDOW_S)
        used = {name: before * kept for name, before in self._used.items() if before * kept > _FORGOTTEN}
        for name, slots in self._held.items():
            used[name] = used.get(name, 0.0) + slots * WINDOW_S * (1 - kept)
        return used
