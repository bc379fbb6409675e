"""How the metrics of many batches become one: built-in reducers, the user's own, and the values they work on.

A user's reducer works part by part (Determined calls a part a slot): a micro-batch in training, a batch in validation.
It gets the parts in the order of the data, so its result is the same for every number of workers. Values travel between
workers as JSON; nothing is pickled."""

from __future__ import annotations

import base64
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy
import torch

from everstep.engine.state import as_bytes, decode, encode
from everstep.errors import UsageError

Number = float | numpy.ndarray[Any, Any]  # a metric's value


class Reducer(enum.Enum):
    """How evaluate_batch's metrics are combined. AVG weights each batch by its number of samples."""

    AVG = 1
    SUM = 2
    MAX = 3
    MIN = 4


class MetricReducer:
    """Subclass it. `reset` is called before each micro-batch (in validation: each batch), `per_slot_reduce` after it,
    and `cross_slot_reduce` with all results at the end of a reporting period or validation. In train_batch or
    evaluate_batch, call an update method of your own."""

    def reset(self) -> None:
        raise NotImplementedError

    def per_slot_reduce(self) -> Any:
        raise NotImplementedError

    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        raise NotImplementedError


class _FunctionReducer(MetricReducer):
    """A function of all values given to `update`, in the order of the data."""

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
        return self._function([value for part in per_slot_metrics for value in part])


class Reducers:
    """All reducers that a trial has wrapped."""

    def __init__(self) -> None:
        self._all: list[tuple[MetricReducer, str | None, bool, bool]] = []

    def wrap(
        self, reducer: Any, name: str | None = None, *, for_training: bool = True, for_validation: bool = True
    ) -> MetricReducer:
        if not isinstance(reducer, MetricReducer):
            if not callable(reducer):
                raise UsageError(
                    f"wrap_reducer got an object of type {type(reducer).__name__}",
                    hint="give it a function or a MetricReducer",
                    code="not-a-reducer",
                )
            reducer = _FunctionReducer(reducer)
        assert isinstance(reducer, MetricReducer)
        if not isinstance(name, str | None):
            raise UsageError(f"wrap_reducer(name={name!r})", hint='name="accuracy"', code="reducer-name-not-a-string")
        self._all.append((reducer, name, for_training, for_validation))
        return reducer

    def reset(self) -> None:
        for reducer, *_ in self._all:
            reducer.reset()

    def reduce_part(self, *, is_training: bool) -> list[Any]:
        """The results for the part that just ended, packed."""
        return [
            pack(reducer.per_slot_reduce(), f"per_slot_reduce() of {_called(reducer, name)}")
            for reducer, name, *uses in self._all
            if uses[0 if is_training else 1]
        ]

    def combine(self, parts: Sequence[Sequence[Any]], *, is_training: bool) -> dict[str, Any]:
        """The metrics, from all parts in the order of the data."""
        metrics: dict[str, Any] = {}
        wanted = [(reducer, name) for reducer, name, *uses in self._all if uses[0 if is_training else 1]]
        for number, (reducer, name) in enumerate(wanted):
            result = reducer.cross_slot_reduce([unpack(part[number]) for part in parts])
            if name is not None and isinstance(result, Mapping):
                raise UsageError(
                    f"reducer {name!r} returned a dict", hint="leave its name out", code="named-reducer-returned-a-dict"
                )
            if name is None and not isinstance(result, Mapping):
                raise UsageError(
                    f"{_called(reducer, name)} returned an object of type {type(result).__name__} without a name",
                    hint='wrap_reducer(…, name="accuracy"), or return a dict of metrics',
                    code="reducer-without-a-name",
                )
            metrics |= result if name is None else {name: result}
        return metrics


def _called(reducer: MetricReducer, name: str | None) -> str:
    return f"the reducer {name!r}" if name else f"the unnamed reducer {type(reducer).__name__}"


def check_reducers(given: Any, names: set[str]) -> dict[str, Reducer]:
    """The reducers that evaluation_reducer() returned, by metric."""
    if isinstance(given, Reducer):
        return dict.fromkeys(names, given)
    if not isinstance(given, Mapping) or not all(isinstance(each, Reducer) for each in given.values()):
        raise UsageError(
            f"evaluation_reducer(): {given!r}", hint="a Reducer, or a dict of them", code="evaluation-reducer-unknown"
        )
    if set(given) != names:
        raise UsageError(
            f"evaluation_reducer() names {sorted(given)}, evaluate_batch returns {sorted(names)}",
            hint="name every metric once",
            code="evaluation-reducer-names-differ",
        )
    return dict(given)


def reduce_metric(reducer: Reducer, pairs: Sequence[tuple[float, Any]]) -> Number:
    """Of (samples, value) per batch, in the order of the data."""
    if reducer is Reducer.AVG:
        return mean(pairs)
    combine: Any = {Reducer.SUM: numpy.sum, Reducer.MAX: numpy.max, Reducer.MIN: numpy.min}[reducer]
    result = combine(numpy.asarray([value for _, value in pairs], dtype=numpy.float64), axis=0)
    return float(result) if numpy.ndim(result) == 0 else result


# --- values that travel ---


def pack(value: Any, where: str = "value") -> Any:
    """For JSON; `unpack` gives it back. An error names the place of a value that cannot be sent."""
    tensors: list[torch.Tensor] = []
    skeleton = encode(value, tensors, where)
    if not tensors:
        return {"plain": skeleton}
    raws = [
        [str(t.dtype), list(t.shape), base64.b64encode(as_bytes(t.cpu()).numpy().tobytes()).decode()] for t in tensors
    ]
    return {"plain": skeleton, "tensors": raws}


def unpack(packed: Any) -> Any:
    tensors = []
    for dtype, shape, text in packed.get("tensors", []):
        raw = torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8) if text else torch.empty(0)
        tensors.append(raw.view(getattr(torch, dtype.removeprefix("torch."))).reshape(shape))
    return decode(packed["plain"], tensors)


def number(name: str, value: Any) -> Number:
    """A metric's value: a number, or an array of numbers."""
    if isinstance(value, float):
        return float(value)  # numpy has its own
    if isinstance(value, torch.Tensor):
        if value.ndim == 0 and not value.is_complex():
            return float(value.item())
        value = value.detach().cpu()
        value = value.float().numpy() if value.dtype is torch.bfloat16 else value.numpy()
    try:
        array = numpy.asarray(value, dtype=numpy.float64)
    except (TypeError, ValueError):
        raise UsageError(
            f"metric {name!r} is a {type(value).__name__}", hint="return numbers or arrays", code="metric-not-a-number"
        ) from None
    return float(array) if array.ndim == 0 else array


def listed(value: Number) -> Any:
    """For JSON."""
    return value.tolist() if isinstance(value, numpy.ndarray) else value


def mean(pairs: Iterable[tuple[float, Any]]) -> Number:
    """Of (weight, value), added in this order, so it has the same bits wherever it is computed."""
    total: Any = None
    weights = 0.0
    for weight, value in pairs:
        part = (value if isinstance(value, float) else numpy.asarray(value, dtype=numpy.float64)) * weight
        total, weights = part if total is None else total + part, weights + weight
    if total is None or not weights:
        return float("nan")
    result = total / weights
    return result if isinstance(result, numpy.ndarray) else float(result)
