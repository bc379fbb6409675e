"""How the metrics of many batches become one: built-in reducers, and the user's own.

A user's reducer works slot by slot, and a slot is a micro-batch in training, a batch in validation: so its result is
the same for every number of workers. It is handed the slots in the order of the data."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy

from everstep.errors import UsageError
from everstep.pytorch.plain_data import Number, mean, pack, unpack


class Reducer(enum.Enum):
    """Of the validation metrics that evaluate_batch returns. AVG is weighted by the batches' samples."""

    AVG = 1
    SUM = 2
    MAX = 3
    MIN = 4


class MetricReducer:
    """Subclass it: `reset` before each slot, your own update method in train_batch or evaluate_batch, `per_slot_reduce`
    after each slot, and `cross_slot_reduce` over all slots at the end of a reporting period or validation."""

    def reset(self) -> None:
        raise NotImplementedError

    def per_slot_reduce(self) -> Any:
        raise NotImplementedError

    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        raise NotImplementedError


class _FunctionReducer(MetricReducer):
    """A function of all values that were given to `update`, in the order of the data."""

    def __init__(self, function: Callable[[list[Any]], Any]) -> None:
        self._function = function
        self._values: list[Any] = []

    def update(self, value: Any) -> None:
        self._values.append(value)

    def reset(self) -> None:
        self._values = []

    def per_slot_reduce(self) -> list[Any]:
        return self._values

    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        return self._function([value for slot in per_slot_metrics for value in slot])


class Reducers:
    """All that a trial has wrapped."""

    def __init__(self) -> None:
        self._all: list[tuple[MetricReducer, str | None, bool, bool]] = []

    def wrap(
        self, reducer: Any, name: str | None = None, *, for_training: bool = True, for_validation: bool = True
    ) -> MetricReducer:
        if not isinstance(reducer, MetricReducer):
            if not callable(reducer):
                raise UsageError(
                    f"wrap_reducer got a {type(reducer).__name__}", hint="give it a function or a MetricReducer"
                )
            reducer = _FunctionReducer(reducer)
        assert isinstance(reducer, MetricReducer)
        if not isinstance(name, str | None):
            raise UsageError(f"wrap_reducer(name={name!r}): a name is a string", hint='name="accuracy"')
        self._all.append((reducer, name, for_training, for_validation))
        return reducer

    def reset(self) -> None:
        for reducer, *_ in self._all:
            reducer.reset()

    def slot(self, *, is_training: bool) -> list[Any]:
        """What the slot that just ended has to say, as it travels."""
        return [
            pack(reducer.per_slot_reduce(), f"per_slot_reduce() of {_called(reducer, name)}")
            for reducer, name, *uses in self._all
            if uses[0 if is_training else 1]
        ]

    def combine(self, slots: Sequence[Sequence[Any]], *, is_training: bool) -> dict[str, Any]:
        """The metrics, from the slots in the order of the data."""
        metrics: dict[str, Any] = {}
        wanted = [(reducer, name) for reducer, name, *uses in self._all if uses[0 if is_training else 1]]
        for number, (reducer, name) in enumerate(wanted):
            result = reducer.cross_slot_reduce([unpack(slot[number]) for slot in slots])
            if name is not None and isinstance(result, Mapping):
                raise UsageError(
                    f"the reducer named {name!r} gave a dict of metrics",
                    hint="leave the name out of wrap_reducer, or return one value",
                )
            if name is None and not isinstance(result, Mapping):
                raise UsageError(
                    f"{_called(reducer, name)} gave a {type(result).__name__}, and no name for it is known",
                    hint='wrap_reducer(…, name="accuracy"), or return a dict of metrics',
                )
            metrics |= result if name is None else {name: result}
        return metrics


def _called(reducer: MetricReducer, name: str | None) -> str:
    return f"the reducer {name!r}" if name else f"the unnamed reducer {type(reducer).__name__}"


def check_reducers(given: Any, names: set[str]) -> dict[str, Reducer]:
    """What evaluation_reducer() says, by metric."""
    if isinstance(given, Reducer):
        return dict.fromkeys(names, given)
    if not isinstance(given, Mapping) or not all(isinstance(each, Reducer) for each in given.values()):
        raise UsageError(
            f"evaluation_reducer() gave {given!r}", hint="return a Reducer (AVG, SUM, MAX, MIN), or a dict of them"
        )
    if set(given) != names:
        raise UsageError(
            f"evaluation_reducer() names {sorted(given)}, evaluate_batch returns {sorted(names)}",
            hint="name every metric once",
        )
    return dict(given)


def reduce_metric(reducer: Reducer, pairs: Sequence[tuple[float, Any]]) -> Number:
    """Of (samples, value) per batch, in the order of the data."""
    if reducer is Reducer.AVG:
        return mean(pairs)
    combine: Any = {Reducer.SUM: numpy.sum, Reducer.MAX: numpy.max, Reducer.MIN: numpy.min}[reducer]
    result = combine(numpy.asarray([value for _, value in pairs], dtype=numpy.float64), axis=0)
    return float(result) if numpy.ndim(result) == 0 else result
