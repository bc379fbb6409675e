"""What a search will cost, before it starts: how many trials train to each length, slot-hours, and time.

In exact order the numbers are right for any metrics, as long as no trial fails. In arrival order they are those of
Determined's preview, which decides each rung as a whole. The time comes from simulating the search with one slot for
each trial and random metrics. Pure: the time for a batch is an argument."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from everstep.errors import UsageError
from everstep.search.config import CUSTOM, EXACT, MODEL_BASED, SearchConfig
from everstep.search.events import Operation, StopTrial, TrainTo, TrialEnded, Validated
from everstep.search.exact_halving import cohort_sizes
from everstep.search.model_based import COHORT
from everstep.search.plain import num_grid_trials
from everstep.search.rungs import survivors
from everstep.search.search import Search
from everstep.search.space import Space

FULL = "full"  # the length of a trial that trains to the end of its script


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """`lines`: how many trials train to which length. Without `batch_s` there are no hours; without a length, nothing
    to count them from."""

    lines: tuple[tuple[int, int | str], ...]
    unit: str
    num_trials: int
    num_at_once: int
    notes: tuple[str, ...]
    total_length: int | None = None
    slot_hours: float | None = None
    expected_s: float | None = None
    first_full_s: float | None = None  # until the first trial has trained to its full length

    def as_plain(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def measured_unit_s(results: Sequence[tuple[int, float]]) -> float | None:
    """How long one slot takes for one unit of length, from earlier trials: (length, seconds on one slot) of each. Long
    trials count more, because short ones spend most of their time starting. None: nothing was trained."""
    trained = [(length, seconds) for length, seconds in results if length > 0 and seconds > 0]
    return sum(seconds for _, seconds in trained) / sum(length for length, _ in trained) if trained else None


def preview(config: SearchConfig, space: Space, *, batch_s: float | None = None, num_slots: int = 1) -> Preview:
    """`batch_s`: how long one slot takes for one unit of length."""
    if config.name == CUSTOM:
        hint = "run the experiment, and watch it with everstep e describe ID"
        raise UsageError(
            "searcher: custom has no preview: its program decides", hint=hint, code="search-preview-custom"
        )
    lines = tuple(_lines(config, space))
    num_trials = sum(number for number, _ in lines)
    lengths = [(number, length) for number, length in lines if isinstance(length, int)]
    total = sum(number * length for number, length in lengths) if len(lengths) == len(lines) else None
    found = Preview(
        lines=lines,
        unit=config.unit,
        num_trials=num_trials,
        num_at_once=_num_at_once(config, num_trials),
        notes=tuple(_notes(config, space)),
        total_length=total,
    )
    if batch_s is None or total is None:
        return found
    expected, first = (units * batch_s for units in simulated(config, num_trials, num_slots))
    return replace(found, slot_hours=total * batch_s / 3600, expected_s=expected, first_full_s=first)


def _lines(config: SearchConfig, space: Space) -> list[tuple[int, int | str]]:
    if not config.is_halving:
        number = num_grid_trials(space) if config.name == "grid" else config.max_trials
        return [(number, config.max_length or FULL)]
    counts: Counter[int] = Counter()
    for bracket in config.brackets():
        numbers = (*survivors(bracket.num_trials, config.divisor, len(bracket.lengths)), 0)
        for (number, after), length in zip(pairwise(numbers), bracket.lengths, strict=True):
            counts[length] += number - after
    return [(counts[length], length) for length in sorted(counts)]


def _num_at_once(config: SearchConfig, num_trials: int) -> int:
    if config.is_halving:
        wanted = sum(bracket.num_at_start for bracket in config.brackets())
        return wanted if config.order != EXACT else min(num_trials, config.max_concurrent_trials or wanted)
    most = (config.cohort or COHORT) if config.name in MODEL_BASED else num_trials
    return min(num_trials, most, config.max_concurrent_trials or most)


def _notes(config: SearchConfig, space: Space) -> list[str]:
    notes = list(space.notes)
    if config.is_halving and config.order == EXACT:
        for bracket in config.brackets():
            sizes = cohort_sizes(bracket, config)
            text = f"{len(sizes)} cohorts of {min(sizes)} to {max(sizes)}" if len(sizes) > 1 else "one cohort"
            lengths = ", ".join(map(str, bracket.lengths))
            notes.append(f"{bracket.num_trials} trials in {text}, compared at {lengths} {config.unit}")
        notes.append("order: exact: any number of slots gives the same trials, lengths and winner")
    elif config.is_halving:
        notes.append("order: arrival: this is an estimate; which trials stop depends on which results arrive first")
    if config.name in MODEL_BASED:
        notes.append(f"{config.name} sees all earlier cohorts; trials of one cohort do not see each other")
    return notes


def simulated(config: SearchConfig, num_trials: int, num_slots: int) -> tuple[int, int]:
    """Units of length until the search ends, and until its first trial is fully trained, on `num_slots` slots."""
    if config.name not in MODEL_BASED:
        return _Simulation(_without_space(config, num_trials), num_slots).run()
    size = min(num_trials, config.cohort or COHORT)  # each cohort waits for the one before it
    (whole, first), rest = _Simulation(_without_space(config, size), num_slots).run(), num_trials % size
    last = _Simulation(_without_space(config, rest), num_slots).run()[0] if rest else 0
    return num_trials // size * whole + last, first


def _without_space(config: SearchConfig, num_trials: int) -> SearchConfig:
    """The same search without hyperparameters. A grid and a model need a space, but their times do not."""
    if config.is_halving:
        return config
    return SearchConfig(
        name="random",
        max_length=config.max_length,
        max_trials=num_trials,
        max_concurrent_trials=config.max_concurrent_trials,
    )


class _Simulation:
    """Slots that serve waiting trials in the order they were asked for."""

    def __init__(self, config: SearchConfig, num_slots: int) -> None:
        self._config, self._free = config, num_slots
        self._search = Search.begin(config, Space(), 0)
        self._waiting: list[tuple[int, int, int]] = []  # order, trial, length
        self._running: list[tuple[int, int, int]] = []  # end, trial, length
        self._trained: dict[int, int] = {}
        self._asked = 0

    def run(self) -> tuple[int, int]:
        now, first = 0, 0
        self._take(self._search.start(), now)
        while self._running:
            now, trial, length = heapq.heappop(self._running)
            self._free += 1
            self._trained[trial] = length
            first = first or (now if length == self._config.max_length else 0)
            metric = trial * 2654435761 % 2**32 + (length * 40503) % 2**16  # mixed well enough
            self._take(self._search.apply(Validated(trial=trial, length=length, metric=metric)), now)
        return now, first

    def _take(self, operations: Sequence[Operation], now: int) -> None:
        queue = list(operations)
        for operation in queue:
            if isinstance(operation, StopTrial):
                queue.extend(self._search.apply(TrialEnded(trial=operation.trial)))
            elif isinstance(operation, TrainTo) and operation.length is not None:
                heapq.heappush(self._waiting, (self._asked, operation.trial, operation.length))
                self._asked += 1
        while self._free and self._waiting:
            _, trial, length = heapq.heappop(self._waiting)
            heapq.heappush(self._running, (now + length - self._trained.get(trial, 0), trial, length))
            self._free -= 1
