"""Token buckets by key: a burst of `at_once`, then `per_s` per second. Time is an argument."""

from __future__ import annotations

from collections.abc import Hashable


class Buckets:
    """Remembers `max_keys` callers at most: the least recent ones are forgotten first, and start with a full bucket."""

    def __init__(self, *, per_s: float, at_once: int, max_keys: int) -> None:
        self._per_s, self._at_once, self._max_keys = per_s, at_once, max_keys
        self._left: dict[Hashable, tuple[float, float]] = {}  # how many were left, and when; the latest at the end

    def take(self, key: Hashable, now: float) -> float:
        """Take one if there is one: 0.0. Else the seconds until there is one."""
        left, at = self._left.pop(key, (float(self._at_once), now))
        left = min(float(self._at_once), left + (now - at) * self._per_s)
        wait_s = 0.0 if left >= 1.0 else (1.0 - left) / self._per_s
        if len(self._left) >= self._max_keys:
            self._left.pop(next(iter(self._left)))
        self._left[key] = (left - 1.0 if wait_s == 0.0 else left, now)
        return wait_s

    def __len__(self) -> int:
        return len(self._left)
