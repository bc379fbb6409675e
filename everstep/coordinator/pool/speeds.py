"""How much faster a trial is on more slots: as measured, and optimistic about sizes that were not tried."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from functools import cache

SCALING = 0.9  # speed on w slots, in speeds of one slot: w ** SCALING, until measured
LEAST_GAIN = 0.2  # of one slot's worth: last slots that bring less are not worth having
QUARTER = 4  # slots are judged by the last quarter of them: measured speeds vary by more than one of many adds
REGROUP_S = 0.15  # each time that a worker comes or leaves


@cache
def assumed_speed(slots: int) -> float:
    """The speed on this many slots, as a multiple of one slot's speed."""
    return float(slots**SCALING)


class SpeedCurve:
    """Batches per second by number of slots: measured, interpolated between measured sizes, assumed outside them."""

    __slots__ = ("_known", "_sizes")

    def __init__(self, measured: Mapping[int, float]) -> None:
        self._known = {slots: speed for slots, speed in measured.items() if slots > 0 and speed > 0}
        self._sizes = sorted(self._known)

    def at(self, slots: int) -> float:
        if (speed := self._known.get(slots)) is not None:
            return speed
        place, sizes = bisect_left(self._sizes, slots), self._sizes
        if 0 < place < len(sizes):
            below, above = sizes[place - 1], sizes[place]
            part = (slots - below) / (above - below)
            speed = self._known[below] * (1 - part) + self._known[above] * part
        else:
            nearest = sizes[min(place, len(sizes) - 1)]
            speed = self._known[nearest] * assumed_speed(slots) / assumed_speed(nearest)
        self._known[slots] = speed
        return speed

    def useful_slots(self, least: int, most: int) -> int:
        """The most slots of which the last ones, on average, each add at least LEAST_GAIN of one slot's worth."""
        worth = LEAST_GAIN * self.at(1)
        for slots in range(least + 1, most + 1):
            if slots > self._sizes[-1] + 1:  # one size beyond what was measured is enough to try next
                return most
            before = max(slots - max(slots // QUARTER, 1), least)
            if self.at(slots) - self.at(before) < worth * (slots - before):
                return before
        return most
