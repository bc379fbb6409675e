"""The grid of a space: one axis for each leaf, points numbered, none of them kept in memory."""

from __future__ import annotations

import math
from typing import Any

from everstep.errors import UsageError
from everstep.search import draws
from everstep.search.space import AnyLeaf, Choice, Constant, Factors, Path, Powers, Space, Whole, dotted, nested

Axis = tuple[Path, tuple[Any, ...]]


def axes(space: Space) -> tuple[Axis, ...]:
    """In the order of their names; the last one changes fastest."""
    return tuple((path, _values(leaf, path)) for path, leaf in space.leaves)


def num_points(grid: tuple[Axis, ...]) -> int:
    """A space without any hyperparameter has no point: there is nothing to try."""
    return math.prod(len(values) for _, values in grid) if grid else 0


def point(grid: tuple[Axis, ...], index: int) -> dict[str, Any]:
    picked = []
    for path, values in reversed(grid):
        index, place = divmod(index, len(values))
        picked.append((path, values[place]))
    return nested(reversed(picked))


def _values(leaf: AnyLeaf, path: Path) -> tuple[Any, ...]:
    if isinstance(leaf, Constant):
        return (leaf.value,)
    if isinstance(leaf, Choice):
        return leaf.values
    if leaf.count is None:
        raise UsageError(
            f"{dotted(path)}: a grid needs its count",
            hint="count: 5 takes five values from end to end",
            code="search-count-missing",
        )
    if isinstance(leaf, Whole):
        return _whole_values(leaf, leaf.count)
    if isinstance(leaf, Factors):
        return tuple(_factor(leaf, place, leaf.count) for place in range(leaf.count))
    exponents = [_place(leaf.low, leaf.high, place, leaf.count) for place in range(leaf.count)]
    return tuple(draws.power(leaf.base, each) for each in exponents) if isinstance(leaf, Powers) else tuple(exponents)


def _place(low: float, high: float, place: int, count: int) -> float:
    return (low + high) / 2 if count == 1 else low + place * (high - low) / (count - 1)


def _factor(leaf: Factors, place: int, count: int) -> float:
    if count > 1 and place in (0, count - 1):
        return leaf.high if place else leaf.low
    return draws.between_values(leaf.low, leaf.high, draws.ONE * place // (count - 1) if count > 1 else draws.ONE // 2)


def _whole_values(leaf: Whole, count: int) -> tuple[int, ...]:
    """Counted in steps; halves go away from zero."""
    first, last = leaf.first // leaf.step, leaf.first // leaf.step + leaf.size - 1
    count = min(count, leaf.size)
    parts = max(count - 1, 1) if count > 1 else 2
    numerators = [first * parts + place * (last - first) for place in range(count)] if count > 1 else [first + last]
    return tuple(leaf.step * _rounded(each, parts) for each in numerators)


def _rounded(numerator: int, denominator: int) -> int:
    whole = (2 * abs(numerator) + denominator) // (2 * denominator)
    return whole if numerator >= 0 else -whole
