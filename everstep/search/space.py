"""Hyperparameter spaces: the values a trial may get. They depend only on the experiment's seed and the trial's number.

A space is a nested map. Its leaves are constants or one of four kinds of range, in Determined's form or the short one:

    {type: int, minval: 1, maxval: 8}                    {int: [1, 8]}          includes both ends
    {type: double, minval: 0, maxval: 1}                 {double: [0, 1]}       excludes the upper end
    {type: log, base: 10, minval: -5, maxval: -1}        {log: [1e-5, 1e-1]}    Determined: exponents. Short: values
    {type: categorical, vals: [adam, sgd]}               {choice: [adam, sgd]}
    {type: const, val: 3}                                3

`count` beside a range is for grids. A list is one constant. Knows nothing of searchers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from everstep.search import draws

Path = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
    value: Any

    def sample(self, seed: int, number: int, path: Path) -> Any:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    values: tuple[Any, ...]

    def sample(self, seed: int, number: int, path: Path) -> Any:
        return self.values[draws.index_below(len(self.values), draws.draw(seed, number, path))]


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    """Whole numbers, both ends included; with `step`, only its multiples."""

    low: int
    high: int
    step: int = 1
    count: int | None = None

    @property
    def first(self) -> int:
        return -(-self.low // self.step) * self.step

    @property
    def size(self) -> int:
        return max(0, (self.high - self.first) // self.step + 1)

    def sample(self, seed: int, number: int, path: Path) -> int:
        return self.first + self.step * draws.index_below(self.size, draws.draw(seed, number, path))


@dataclass(frozen=True, kw_only=True, slots=True)
class Real:
    low: float
    high: float
    count: int | None = None

    def sample(self, seed: int, number: int, path: Path) -> float:
        return draws.between(self.low, self.high, draws.draw(seed, number, path))


@dataclass(frozen=True, kw_only=True, slots=True)
class Powers:
    """Determined's `log`: `low` and `high` are exponents of `base`."""

    base: float
    low: float
    high: float
    count: int | None = None

    def sample(self, seed: int, number: int, path: Path) -> float:
        return draws.between_powers(self.base, self.low, self.high, draws.draw(seed, number, path))


@dataclass(frozen=True, kw_only=True, slots=True)
class Factors:
    """The short form of `log`: `low` and `high` are values."""

    low: float
    high: float
    count: int | None = None

    def sample(self, seed: int, number: int, path: Path) -> float:
        return draws.between_values(self.low, self.high, draws.draw(seed, number, path))


AnyLeaf = Constant | Choice | Whole | Real | Powers | Factors


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """Leaves by path, sorted. `notes`: sentences for the preview."""

    leaves: tuple[tuple[Path, AnyLeaf], ...] = ()
    notes: tuple[str, ...] = ()

    def sample(self, seed: int, number: int) -> dict[str, Any]:
        """The hyperparameters of a trial."""
        return nested((path, leaf.sample(seed, number, path)) for path, leaf in self.leaves)

    def searched(self) -> Iterator[tuple[Path, AnyLeaf]]:
        return ((path, leaf) for path, leaf in self.leaves if not isinstance(leaf, Constant))


def nested(values: Iterator[tuple[Path, Any]]) -> dict[str, Any]:
    """A nested map from values by path. Values are copied, so that one trial cannot change those of another."""
    tree: dict[str, Any] = {}
    for path, value in values:
        *above, name = path
        branch = tree
        for each in above:
            branch = branch.setdefault(each, {})
        branch[name] = _copied(value)
    return tree


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(each) for key, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list | tuple) else value


def dotted(path: Path) -> str:
    return ".".join(("hyperparameters", *path))
