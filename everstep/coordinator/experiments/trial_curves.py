"""The results of all trials of an experiment, as lists by trial, and fewer of them where there are too many.

Read once: what a search's events said stays said, so only later ones are added."""

from __future__ import annotations

import asyncio
import bisect
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from everstep import wire
from everstep.coordinator.store.experiment_rows import read_result_events
from everstep.coordinator.store.store_reader import StoreReader
from everstep.wire.metrics import Value

_MOST_KEPT = 8  # experiments
_LEAST_POINTS = 3  # of a trial that is shown: its first, best and last result


@dataclass(kw_only=True, slots=True)
class Curve:
    """By length."""

    lengths: list[int] = field(default_factory=list)
    metrics: list[Value | None] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def add(self, length: int, metric: Value | None, time: float) -> None:
        place = bisect.bisect_left(self.lengths, length)
        self.lengths.insert(place, length)
        self.metrics.insert(place, metric)
        self.times.insert(place, time)


@dataclass(kw_only=True, slots=True)
class _ReadCurves:
    last_event: int = 0
    curves: dict[int, Curve] = field(default_factory=dict)


class CurveBook:
    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._known: OrderedDict[int, _ReadCurves] = OrderedDict()  # the one used last at the end
        self._reading = asyncio.Lock()

    async def read(self, experiment: int) -> tuple[Mapping[int, Curve], int]:
        """By trial, and the last event that they include."""
        async with self._reading:
            known = self._known.setdefault(experiment, _ReadCurves())
            self._known.move_to_end(experiment)
            while len(self._known) > _MOST_KEPT:
                self._known.popitem(last=False)
            found = await self._reader.read(
                lambda connection: read_result_events(connection, experiment, known.last_event)
            )
            for number, time, event in found:
                known.last_event = number
                if event is not None:
                    known.curves.setdefault(event["trial"], Curve()).add(event["length"], event["metric"], time)
            return known.curves, known.last_event

    def forget(self, experiment: int) -> None:
        """It was deleted."""
        self._known.pop(experiment, None)


def curves_view(
    experiment: int,
    curves: Mapping[int, Curve],
    *,
    last_event: int,
    most_points: int,
    only: Collection[int] = (),
    smaller_is_better: bool,
) -> wire.TrialCurves:
    """`only`: these trials; empty: all."""
    chosen = {number: curve for number, curve in sorted(curves.items()) if not only or number in only}
    shown = decide_shown(chosen, most_points, smaller_is_better=smaller_is_better)
    places = {
        number: thinned(chosen[number].metrics, most, smaller_is_better=smaller_is_better)
        for number, most in shown.items()
    }
    num_all, num_shown = sum(len(each.lengths) for each in chosen.values()), sum(map(len, places.values()))
    return wire.TrialCurves(
        experiment=experiment,
        last_event=last_event,
        trials=list(places),
        lengths=[[chosen[number].lengths[each] for each in mine] for number, mine in places.items()],
        metrics=[[chosen[number].metrics[each] for each in mine] for number, mine in places.items()],
        times=[[chosen[number].times[each] for each in mine] for number, mine in places.items()],
        num_results=[len(chosen[number].lengths) for number in places],
        num_left_out=len(chosen) - len(places),
        thinned=_sentence(num_all, num_shown, len(chosen), len(places)),
    )


def decide_shown(curves: Mapping[int, Curve], most_points: int, *, smaller_is_better: bool) -> dict[int, int]:
    """How many points each trial gets: all, or the same limit for each; if even few are too many, the best trials."""
    sizes = {number: len(curve.lengths) for number, curve in curves.items()}
    if sum(sizes.values()) <= most_points:
        return sizes
    if len(sizes) * _LEAST_POINTS > most_points:
        best = sorted(sizes, key=lambda number: (_best(curves[number], smaller_is_better=smaller_is_better), number))
        sizes = {number: sizes[number] for number in sorted(best[: max(1, most_points // _LEAST_POINTS)])}
    low, high = _LEAST_POINTS, max(sizes.values())
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(each, middle) for each in sizes.values()) <= most_points:
            low = middle
        else:
            high = middle - 1
    return {number: min(each, low) for number, each in sizes.items()}


def thinned(metrics: Sequence[Value | None], most: int, *, smaller_is_better: bool) -> list[int]:
    """The places of this many points: the first, the last, the best, and others evenly between them."""
    if len(metrics) <= most:
        return list(range(len(metrics)))
    even = {round(each * (len(metrics) - 1) / (most - 2)) for each in range(most - 1)} if most > 2 else {0}
    sign = 1 if smaller_is_better else -1
    finite = [(sign * value, place) for place, value in enumerate(metrics) if isinstance(value, int | float)]
    return sorted({*even, *([min(finite)[1]] if finite else [])})


def _best(curve: Curve, *, smaller_is_better: bool) -> float:
    sign = 1 if smaller_is_better else -1
    return min((sign * each for each in curve.metrics if isinstance(each, int | float)), default=float("inf"))


def _sentence(num_all: int, num_shown: int, num_trials: int, num_trials_shown: int) -> str:
    if num_all == num_shown:
        return ""
    text = f"{num_shown:,} of {num_all:,} results: the first, best and last of each trial, and some between them"
    return text if num_trials == num_trials_shown else f"{text}; the best {num_trials_shown:,} of {num_trials:,} trials"
