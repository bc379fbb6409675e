"""Reported values: numbers become points of a series, everything else is kept as it is, ready for JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from everstep.wire import to_value


def plain(value: Any) -> tuple[Any, bool]:
    """The value for JSON, and whether all its numbers are finite."""
    if hasattr(value, "tolist"):  # a tensor or array, of one number or many
        value = value.tolist()
    if isinstance(value, float):
        return (value, True) if math.isfinite(value) else (None, False)
    if value is None or isinstance(value, bool | int | str):
        return value, True
    if isinstance(value, Mapping):
        values = {str(name): plain(each) for name, each in value.items()}
        return {name: each for name, (each, _) in values.items()}, all(is_finite for _, is_finite in values.values())
    if isinstance(value, list | tuple | set | frozenset):
        items = [plain(each) for each in value]
        return [each for each, _ in items], all(is_finite for _, is_finite in items)
    return str(value), True


def split(metrics: Mapping[str, Any]) -> tuple[dict[str, float | str], dict[str, Any]]:
    """Numbers by name, with NaN and infinities as texts; and the rest."""
    values: dict[str, float | str] = {}
    details: dict[str, Any] = {}
    for name, value in metrics.items():
        found = value.tolist() if hasattr(value, "tolist") else value
        number = _number(found)
        if number is None:
            details[str(name)] = plain(found)[0]
        else:
            values[str(name)] = to_value(number)
    return values, details


def _number(value: Any) -> float | None:
    if isinstance(value, bool | int | float):
        try:
            return float(value)
        except OverflowError:  # an integer beyond any float
            return math.inf if value > 0 else -math.inf
    return None
