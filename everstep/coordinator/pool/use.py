"""How much of a pool each person has used: slot-seconds by person and day (UTC), from the stored assignments.

Deleted experiments count too. Slots in use count up to now."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sqlalchemy import Connection

from everstep import wire
from everstep.coordinator.store.pool_rows import read_held
from everstep.coordinator.store.store_reader import StoreReader

DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotTime:
    """A slot, for a while."""

    person: str
    began_at: float  # time of day
    ended_at: float


def use_by_day(held: Iterable[SlotTime], since: float) -> list[wire.DayUse]:
    """Slot-seconds by person and day, from `since` on."""
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for each in held:
        for day, number in _by_day(max(each.began_at, since), each.ended_at):
            seconds[day, each.person] += number
    return [
        wire.DayUse(day=day, person=person, slot_seconds=round(number, 3))
        for (day, person), number in sorted(seconds.items())
    ]


def _by_day(began_at: float, ended_at: float) -> Iterator[tuple[str, float]]:
    """Days and seconds, split at midnight UTC."""
    while began_at < ended_at:
        midnight = (began_at // DAY_S + 1) * DAY_S
        until = min(ended_at, midnight)
        yield time.strftime("%Y-%m-%d", time.gmtime(began_at)), until - began_at
        began_at = until


class PoolUses:
    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader

    async def by_day(self, pool: str, days: int) -> wire.PoolUse:
        """The use on the last `days` days, including today."""
        now = time.time()
        since = (now // DAY_S + 1 - days) * DAY_S

        def read(connection: Connection) -> list[wire.DayUse]:
            found = read_held(connection, pool, since)
            held = (
                SlotTime(person=row[0], began_at=row[1], ended_at=now if row[2] is None else row[2]) for row in found
            )
            return use_by_day(held, since)

        return wire.PoolUse(pool=pool, use=await self._reader.read(read))
