"""The searcher of an experiment: its section of the job file, checked, with defaults.

Determined's names and defaults, `order` and `cohort`, and four searchers of Optuna. Knows nothing of trials."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from everstep.errors import UsageError
from everstep.search import rungs

EXACT, ARRIVAL = "exact", "arrival"
HALVING = ("async_halving", "adaptive_asha")
MODEL_BASED = ("tpe", "cmaes", "gp", "qmc")
CUSTOM = "custom"
UNITS = ("batches", "epochs", "records")
_REMOVED = {
    "adaptive": "use adaptive_asha with max_trials instead of budget",
    "adaptive_simple": "use adaptive_asha",
    "sync_halving": "use async_halving; order: exact makes the same decisions",
    "pbt": "use adaptive_asha",
}
_ALL = ("name", "metric", "smaller_is_better", "source_trial_id", "source_checkpoint_uuid", "max_length", "order")
_TRIALS = ("max_trials", "max_concurrent_trials")
_TIME = ("max_time", "time_metric", "divisor", "stop_once", "cohort")
_KEYS = {
    "single": (*_ALL, "lengths"),
    "random": (*_ALL, *_TRIALS),
    "grid": (*_ALL, "max_concurrent_trials"),
    "async_halving": (*_ALL, *_TRIALS, *_TIME, "num_rungs"),
    "adaptive_asha": (*_ALL, *_TRIALS, *_TIME, "mode", "max_rungs", "bracket_rungs"),
    **dict.fromkeys(MODEL_BASED, (*_ALL, *_TRIALS, "cohort")),
    CUSTOM: ("name", "metric", "smaller_is_better", "source_trial_id", "source_checkpoint_uuid", "unit"),
}
MOST_TRIALS, _MOST_RUNGS, _MOST_LENGTH = 10_000, 100, 2**53
_MOST_AT_ONCE = 2_000_000
_MOST_DIVISOR = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchConfig:
    """`max_length` is in `unit`, which is a name for people: batches, epochs, records or the time metric."""

    name: str = "single"
    metric: str = ""
    smaller_is_better: bool = True
    order: str = EXACT
    max_length: int | None = None  # None: to the end of the script
    lengths: tuple[int, ...] = ()  # where a single trial is validated before its end
    unit: str = "batches"
    max_trials: int = 1  # 0 for a grid, whose space determines it; for a program: the most that it may create
    max_concurrent_trials: int = 16
    divisor: Fraction = Fraction(4)
    mode: str = "standard"
    max_rungs: int = 5
    num_rungs: int = 5
    bracket_rungs: tuple[int, ...] = ()
    stop_once: bool | None = None
    cohort: int | None = None
    source_trial_id: int | None = None
    source_checkpoint_uuid: str | None = None

    @property
    def is_halving(self) -> bool:
        return self.name in HALVING

    @property
    def is_promoting(self) -> bool:
        """Whether a trial that was not among the best may continue later, as before Determined 0.38."""
        return self.order == ARRIVAL and self.stop_once is False

    def brackets(self) -> tuple[rungs.Bracket, ...]:
        """The brackets of a halving search; async_halving has one."""
        assert self.max_length is not None
        if self.name == "async_halving":
            shares: tuple[tuple[int, int, int], ...] = ((self.num_rungs, self.max_trials, self.max_concurrent_trials),)
        else:
            sizes = self.bracket_rungs or rungs.bracket_rungs(
                self.mode, self.max_rungs, self.divisor, self.max_length, self.max_trials
            )
            sizes = tuple(
                sorted(sizes, reverse=True)[: self.max_trials]
            )  # one trial each, but never more than requested
            trials = rungs.bracket_trials(self.max_trials, self.divisor, sizes)
            at_once = rungs.bracket_concurrency(self.max_concurrent_trials, self.divisor, trials)
            shares = tuple(zip(sizes, trials, at_once, strict=True))
        return tuple(
            rungs.Bracket(
                lengths=rungs.rung_lengths(num_rungs, self.divisor, self.max_length),
                num_trials=num_trials,
                num_at_once=at_once,
                num_at_start=rungs.num_at_start(at_once, self.divisor, num_rungs, num_trials),
            )
            for num_rungs, num_trials, at_once in shares
        )


def read_searcher(given: Mapping[str, Any] | None) -> SearchConfig:
    """Determined's section as it is; before 0.38 it had max_length instead of max_time and time_metric."""
    if not isinstance(given, Mapping):
        raise UsageError(
            f"searcher: {given!r} is not a mapping",
            hint="for example, searcher: {name: single, metric: loss}",
            code="searcher-not-a-map",
        )
    name = _name(given)
    given = {key: value for key, value in given.items() if value is not None}
    if unknown := sorted(map(str, given.keys() - set(_KEYS[name]))):
        near = difflib.get_close_matches(unknown[0], _KEYS[name], 1)
        hint = f"did you mean {near[0]}?" if near else f"its keys: {', '.join(_KEYS[name])}"
        message = f"searcher: {name} has no {', '.join(unknown)}"
        raise UsageError(message, hint=hint, code="searcher-key-unknown")
    read = _SearcherSection(given)
    length, unit = _length(read, name)
    known = {"single": 1, "grid": 0, CUSTOM: MOST_TRIALS}
    max_trials = known[name] if name in known else read.whole("max_trials", 1, MOST_TRIALS)
    return SearchConfig(
        name=name,
        metric=read.text("metric", is_required=True) or "",
        smaller_is_better=read.flag("smaller_is_better", True),
        order=read.one_of("order", (EXACT, ARRIVAL)),
        max_length=length,
        lengths=read.lengths(length),
        unit=unit,
        max_trials=max_trials,
        max_concurrent_trials=read.whole("max_concurrent_trials", 0, _MOST_AT_ONCE, default=16),
        divisor=read.divisor(),
        mode=read.one_of("mode", rungs.MODES),
        max_rungs=read.whole("max_rungs", 1, _MOST_RUNGS, default=5),
        num_rungs=read.whole("num_rungs", 1, _MOST_RUNGS, default=5),
        bracket_rungs=read.bracket_rungs(),
        stop_once=read.flag("stop_once", None),
        cohort=read.whole("cohort", 1, MOST_TRIALS) if "cohort" in given else None,
        source_trial_id=read.whole("source_trial_id", 0, _MOST_LENGTH) if "source_trial_id" in given else None,
        source_checkpoint_uuid=read.text("source_checkpoint_uuid"),
    )


def is_smaller_better(given: Mapping[str, Any]) -> bool:
    """Of a section, which may leave it out or empty."""
    return given.get("smaller_is_better") is not False


def _name(given: Mapping[str, Any]) -> str:
    name = given.get("name")
    if isinstance(name, str) and name in _REMOVED:
        raise UsageError(f"searcher.name: {name} is not supported", hint=_REMOVED[name], code="searcher-removed")
    if not isinstance(name, str) or name not in _KEYS:
        message = "searcher has no name" if "name" not in given else f"searcher.name: there is no searcher {name!r}"
        raise UsageError(message, hint=f"use one of {', '.join(_KEYS)}", code="searcher-name-unknown")
    return name


def _length(read: _SearcherSection, name: str) -> tuple[int | None, str]:
    if name == CUSTOM:
        return None, read.one_of("unit", UNITS)
    length, unit = read.max_length()
    if name in HALVING:
        time, metric = read.whole("max_time", 1, _MOST_LENGTH, default=0), read.text("time_metric")
        if time and metric:
            if length and (length, unit) != (time, metric):
                raise UsageError(
                    f"searcher: max_length is {length} {unit}, but max_time is {time} {metric}",
                    hint="keep one of them",
                    code="searcher-length-twice",
                )
            return time, metric
        if time or metric:
            raise UsageError(
                f"searcher: {'max_time' if time else 'time_metric'} without {'time_metric' if time else 'max_time'}",
                hint="set max_time: 1000 and time_metric: batches, or max_length: {batches: 1000} alone",
                code="searcher-length-missing",
            )
        if not length:
            raise UsageError(
                f"searcher: {name} needs the maximum length of a trial",
                hint="set max_length: {batches: 1000}, or max_time: 1000 and time_metric: batches",
                code="searcher-length-missing",
            )
    return length, unit


class _SearcherSection:
    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given

    def whole(self, key: str, least: int, most: int, default: int | None = None) -> int:
        value = self._given.get(key, default)
        if value is None:
            raise UsageError(
                f"searcher: {key} is missing", hint=f"set {key} to a whole number", code="searcher-key-missing"
            )
        if key in self._given:
            self._check_whole(key, value, least, most)
        return int(value)

    def _check_whole(self, key: str, value: Any, least: int, most: int) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise UsageError(
                f"searcher.{key}: {value!r} is not valid",
                hint=f"use a whole number from {least} to {most}",
                code="searcher-number",
            )

    def text(self, key: str, *, is_required: bool = False) -> str | None:
        value = self._given.get(key)
        if (value is None and not is_required) or (isinstance(value, str) and value):
            return value
        message = f"searcher: {key} is missing" if value is None else f"searcher.{key}: {value!r} is not valid"
        raise UsageError(message, hint=f"set {key} to a string", code="searcher-text")

    def flag(self, key: str, default: Any) -> Any:
        value = self._given.get(key, default)
        if value is not default and not isinstance(value, bool):
            message = f"searcher.{key}: {value!r} is not valid"
            raise UsageError(message, hint="use true or false", code="searcher-flag")
        return value

    def one_of(self, key: str, words: tuple[str, ...]) -> str:
        value = self._given.get(key, words[0])
        if value not in words:
            message = f"searcher.{key}: {value!r} is not valid"
            raise UsageError(message, hint=f"use {' or '.join(words)}", code="searcher-word")
        return str(value)

    def divisor(self) -> Fraction:
        value = self._given.get("divisor", 4)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1 < value <= _MOST_DIVISOR:
            raise UsageError(
                f"searcher.divisor: {value!r} is not valid",
                hint=f"use a number above 1 and up to {_MOST_DIVISOR}, for example 4",
                code="searcher-number",
            )
        return Fraction(str(value))

    def bracket_rungs(self) -> tuple[int, ...]:
        return self._whole_list("bracket_rungs", _MOST_RUNGS, example="[3, 2]")

    def lengths(self, limit: int | None) -> tuple[int, ...]:
        """The lengths below the limit, shortest first."""
        given = self._whole_list("lengths", _MOST_LENGTH, example="[16, 64]")
        return tuple(sorted({each for each in given if limit is None or each < limit}))

    def _whole_list(self, name: str, most: int, *, example: str) -> tuple[int, ...]:
        value = self._given.get(name, [])
        if not isinstance(value, list | tuple):
            raise UsageError(
                f"searcher.{name}: {value!r} is not a list", hint=f"for example, {example}", code="searcher-number"
            )
        for place, each in enumerate(value):
            self._check_whole(f"{name}[{place}]", each, 1, most)
        return tuple(value)

    def max_length(self) -> tuple[int | None, str]:
        """{batches: 937}, or a number of batches; None or 0: to the end of the script."""
        value = self._given.get("max_length")
        if value is None or (value == 0 and not isinstance(value, bool | Mapping)):
            return None, UNITS[0]
        if not isinstance(value, Mapping):
            value = {UNITS[0]: value}
        if len(value) != 1 or (unit := next(iter(value))) not in UNITS:
            hint = "use one of {batches: 937}, {epochs: 3}, {records: 60000}"
            raise UsageError(f"searcher.max_length: {dict(value)} is not valid", hint=hint, code="searcher-length")
        self._check_whole(f"max_length.{unit}", value[unit], 1, _MOST_LENGTH)
        return value[unit], unit
