"""Values that travel between workers and into reports: plain data, tensors and arrays; never pickle."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

import numpy
import torch

from everstep.engine.state import as_bytes, decode, encode
from everstep.errors import UsageError

Number = float | numpy.ndarray[Any, Any]  # of a metric: one, or an array of them


def pack(value: Any, where: str = "value") -> Any:
    """As JSON can hold it; `unpack` gives it back. What cannot be sent is an error that names the place."""
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
        return float(value)  # numpy has one of its own
    if isinstance(value, torch.Tensor):
        if value.ndim == 0 and not value.is_complex():
            return float(value.item())
        value = value.detach().cpu()
        value = value.float().numpy() if value.dtype is torch.bfloat16 else value.numpy()
    try:
        array = numpy.asarray(value, dtype=numpy.float64)
    except (TypeError, ValueError):
        raise UsageError(
            f"metric {name!r} is a {type(value).__name__}, {str(value)[:40]!r}",
            hint="return numbers, tensors or arrays of numbers",
        ) from None
    return float(array) if array.ndim == 0 else array


def listed(value: Number) -> Any:
    """As JSON can hold it."""
    return value.tolist() if isinstance(value, numpy.ndarray) else value


def mean(pairs: Iterable[tuple[float, Any]]) -> Number:
    """Of (weight, value), added in this order, so that it has the same bits wherever it is worked out."""
    total: Any = None
    weights = 0.0
    for weight, value in pairs:
        part = (value if isinstance(value, float) else numpy.asarray(value, dtype=numpy.float64)) * weight
        total, weights = part if total is None else total + part, weights + weight
    if total is None or not weights:
        return float("nan")
    result = total / weights
    return result if isinstance(result, numpy.ndarray) else float(result)
