"""The slots that an experiment has held over time, from the beginnings and ends of its assignments. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from everstep import wire
from everstep.wire.page_bounds import MOST_USE_POINTS


def slot_use(held: Iterable[tuple[float, float | None]], now: float) -> wire.ExperimentUse:
    """`held`: when each assignment began and ended; None: it is held still."""
    changes = []
    for began_at, ended_at in held:
        end = now if ended_at is None else ended_at
        changes += [(began_at, 1)] if ended_at is None else [(began_at, 1), (max(began_at, end), -1)]
    changes.sort()
    slots = list(accumulate(change for _, change in changes))
    times = [time for time, _ in changes]
    if times and now > times[-1]:
        times.append(now)
        slots.append(slots[-1])
    lasted = [0.0, *(held * (after - time) for held, time, after in zip(slots, times, times[1:], strict=False))]
    used = list(accumulate(lasted))
    shown = _places(len(times))
    return wire.ExperimentUse(
        times=[times[each] for each in shown],
        slots=[slots[each] for each in shown],
        slot_seconds=[round(used[each], 3) for each in shown],
    )


def _places(number: int) -> list[int]:
    """Of all points, or of as many as an answer may have, the last of them included."""
    if number <= MOST_USE_POINTS:
        return list(range(number))
    return sorted({round(each * (number - 1) / (MOST_USE_POINTS - 1)) for each in range(MOST_USE_POINTS)})
