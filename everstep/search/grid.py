"""The grid of a space: one axis for each leaf. Points and values are numbered, and computed when they are asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from everstep.errors import UsageError
from everstep.search import draws
from everstep.search.space import AnyLeaf, Choice, Constant, Factors, Path, Powers, Space, Whole, dotted, nested


@dataclass(frozen=True, slots=True)
class _GridValues(Sequence[Any]):
    """Values that are computed from their index."""

    num_values: int
    value: Callable[[int], Any]

    def __len__(self) -> int:
        return self.num_values

    def __getitem__(self, place: Any) -> Any:
        if not 0 <= place < self.num_values:
            raise IndexError(place)
        return self.value(place)


Axis = tuple[Path, Sequence[Any]]


def axes(space: Space) -> tuple[Axis, ...]:
    """The axes, ordered by name. The last one changes fastest."""
    return tuple((path, _values(leaf, path)) for path, leaf in space.leaves)


def num_points(grid: tuple[Axis, ...]) -> int:
    """A space without hyperparameters has no points: there is nothing to try."""
    return math.prod(len(values) for _, values in grid) if grid else 0


def point(grid: tuple[Axis, ...], index: int) -> dict[str, Any]:
    picked = []
    for path, values in reversed(grid):
        index, place = divmod(index, len(values))
        picked.append((path, values[place]))
    return nested(reversed(picked))


def _values(leaf: AnyLeaf, path: Path) -> Sequence[Any]:
    if isinstance(leaf, Constant):
        return (leaf.value,)
    if isinstance(leaf, Choice):
        return leaf.values
    if (count := leaf.count) is None:
        raise UsageError(
            f"{dotted(path)}: a grid needs a count",
            hint="for example, count: 5 takes five values, evenly spaced from one end to the other",
            code="search-count-missing",
        )
    if isinstance(leaf, Whole):
        count = min(count, leaf.size)
        return _GridValues(count, lambda place: _whole(leaf, place, count))
    if isinstance(leaf, Factors):
        return _GridValues(count, lambda place: _factor(leaf, place, count))
    if isinstance(leaf, Powers):
        return _GridValues(count, lambda place: draws.power(leaf.base, _between(leaf.low, leaf.high, place, count)))
    return _GridValues(count, lambda place: _between(leaf.low, leaf.high, place, count))


def _between(low: float, high: float, place: int, count: int) -> float:
    """A value between two ends; a single one is in the middle. Uses fractions, because the difference of two floats may
    be infinite."""
    part = Fraction(place, count - 1) if count > 1 else Fraction(1, 2)
    return float(Fraction(low) + part * (Fraction(high) - Fraction(low)))


def _factor(leaf: Factors, place: int, count: int) -> float:
    if count > 1 and place in (0, count - 1):
        return leaf.high if place else leaf.low
    return draws.between_values(leaf.low, leaf.high, draws.ONE * place // (count - 1) if count > 1 else draws.ONE // 2)


def _whole(leaf: Whole, place: int, count: int) -> int:
    """A whole number between two ends, counted in steps; halves are rounded away from zero."""
    first, last = leaf.first // leaf.step, leaf.first // leaf.step + leaf.size - 1
    numerator = first * (count - 1) + place * (last - first) if count > 1 else first + last
    return leaf.step * _rounded(numerator, count - 1 if count > 1 else 2)


def _rounded(numerator: int, denominator: int) -> int:
    whole = (2 * abs(numerator) + denominator) // (2 * denominator)
    return whole if numerator >= 0 else -whole
