"""Reads a space from the job file's `hyperparameters`. Every error names the hyperparameter and its numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from everstep.errors import UsageError
from everstep.search import draws
from everstep.search.space import AnyLeaf, Choice, Constant, Factors, Path, Powers, Real, Space, Whole, dotted

BATCH_SIZE: Path = ("global_batch_size",)
_KEYS = {  # Determined's: required, optional
    "const": ({"val"}, set[str]()),
    "int": ({"minval", "maxval"}, {"count"}),
    "double": ({"minval", "maxval"}, {"count"}),
    "log": ({"base", "minval", "maxval"}, {"count"}),
    "categorical": ({"vals"}, set[str]()),
}
_SHORT = ("int", "double", "log", "choice")
_LARGEST_COUNT = 1_000_000
_SMALL_EXPONENT = 0.1  # base 10: 1.26. Who writes a smaller positive one means a value


def read_space(given: Mapping[str, Any] | None, *, num_micro_batches: int = 1) -> Space:
    """`num_micro_batches`: a searched global_batch_size takes multiples of it, since a batch is cut into that many."""
    leaves = sorted(_leaves(given or {}, ()), key=lambda each: [name.encode() for name in each[0]])
    notes = []
    for place, (path, leaf) in enumerate(leaves):
        if path == BATCH_SIZE and num_micro_batches > 1:
            leaves[place] = (path, whole := _in_steps(leaf, path, num_micro_batches))
            if isinstance(whole, Whole):
                notes.append(
                    f"{'.'.join(path)} takes the {whole.size} multiples of {num_micro_batches} micro-batches "
                    f"from {whole.first} to {whole.first + whole.step * (whole.size - 1)}"
                )
    return Space(leaves=tuple(leaves), notes=tuple(notes))


def _leaves(given: Any, path: Path) -> Iterator[tuple[Path, AnyLeaf]]:
    if isinstance(given, Mapping) and (given or not path) and not _is_range(given):
        for name, each in given.items():
            yield from _leaves(each, (*path, str(name)))
    else:
        yield path, _leaf(given, path)


def _is_range(given: Mapping[str, Any]) -> bool:
    return "type" in given or _short_kind(given) is not None


def _short_kind(given: Mapping[str, Any]) -> str | None:
    kinds = [kind for kind in _SHORT if isinstance(given.get(kind), list | tuple)]
    return kinds[0] if len(kinds) == 1 and given.keys() <= {kinds[0], "count"} else None


def _leaf(given: Any, path: Path) -> AnyLeaf:
    if isinstance(given, Mapping) and given:
        kind = _short_kind(given)
        return _short(kind, given, path) if kind is not None else _determined(given, path)
    if isinstance(given, list | tuple):
        _check_list(given, path)
    return Constant(value=given)


def _check_list(given: Any, path: Path) -> None:
    for each in given:
        if isinstance(each, Mapping) and _short_kind(each) is not None:
            raise UsageError(
                f"{dotted(path)}: {dict(each)} inside a list; a list is one constant",
                hint="give each element a name of its own, or use choice with whole lists",
                code="search-range-in-a-list",
            )


def _determined(given: Mapping[str, Any], path: Path) -> AnyLeaf:
    kind = given["type"]
    if not isinstance(kind, str) or kind not in _KEYS:
        raise UsageError(
            f"{dotted(path)}.type: {kind!r}",
            hint="const, int, double, log or categorical; a hyperparameter cannot be called `type`",
            code="search-type-unknown",
        )
    required, optional = _KEYS[kind]
    if missing := sorted(required - given.keys()):
        message = f"{dotted(path)}: {kind} without {' and '.join(missing)}"
        hint = f"{kind} needs {', '.join(sorted(required))}"
        if kind == "log" and {"minval", "maxval"} <= given.keys():
            values = f"{{log: [{given['minval']}, {given['maxval']}]}}"
            hint = f"{hint}; minval and maxval are exponents. For values write {values}"
        raise UsageError(message, hint=hint, code="search-key-missing")
    if unknown := sorted(map(str, given.keys() - required - optional - {"type"})):
        known = ", ".join(sorted(required | optional))
        raise UsageError(
            f"{dotted(path)}: {kind} with {', '.join(unknown)}", hint=f"it has {known}", code="search-key-unknown"
        )
    if kind == "const":
        return Constant(value=given["val"])
    if kind == "categorical":
        return _choice(given["vals"], path, "vals")
    low, high = given["minval"], given["maxval"]
    count = _count(given.get("count"), path)
    if kind == "int":
        return _whole(low, high, count, path)
    if kind == "double":
        return Real(**_ends(low, high, path), count=count)
    base = _number(given["base"], path, "base")
    if base <= 0:
        raise UsageError(f"{dotted(path)}.base: {base}", hint="a number above 0", code="search-base-not-positive")
    leaf = Powers(base=base, **_ends(low, high, path), count=count)
    _check_exponents(leaf, path)
    return leaf


def _check_exponents(leaf: Powers, path: Path) -> None:
    text = f"{dotted(path)}: log with base {leaf.base:g}, minval {leaf.low:g} and maxval {leaf.high:g}"
    largest = max(leaf.low * math.log(leaf.base), leaf.high * math.log(leaf.base))
    if largest > math.log(1e308):
        message = f"{text}: {leaf.base:g}^{leaf.high:g} is not a finite number"
    elif 0 < leaf.low < _SMALL_EXPONENT:
        message = f"{text}: these are exponents, so it would take {_power(leaf, leaf.low)} to {_power(leaf, leaf.high)}"
    else:
        return
    raise UsageError(
        message,
        hint=f"for values write {{log: [{leaf.low:g}, {leaf.high:g}]}}; for exponents, for example, minval: -5",
        code="search-exponents-look-like-values",
    )


def _power(leaf: Powers, exponent: float) -> str:
    return f"{draws.power(leaf.base, exponent):.6g}"


def _short(kind: str, given: Mapping[str, Any], path: Path) -> AnyLeaf:
    count = _count(given.get("count"), path)
    if kind == "choice":
        if count is not None:
            raise UsageError(f"{dotted(path)}: choice with count", hint="leave it out", code="search-key-unknown")
        return _choice(given[kind], path, kind)
    ends = given[kind]
    if len(ends) != 2:
        message = f"{dotted(path)}.{kind}: {len(ends)} numbers"
        raise UsageError(message, hint=f"{{{kind}: [LEAST, MOST]}}", code="search-ends-not-two")
    low, high = (_from_text(end) for end in ends)
    if kind == "int":
        return _whole(low, high, count, path, names=(f"{kind}[0]", f"{kind}[1]"))
    both = _ends(low, high, path, names=(f"{kind}[0]", f"{kind}[1]"))
    if kind == "double":
        return Real(**both, count=count)
    if both["low"] <= 0:
        raise UsageError(
            f"{dotted(path)}.log: [{low}, {high}] are values and must be above 0",
            hint=f"for exponents write {{type: log, base: 10, minval: {low}, maxval: {high}}}",
            code="search-values-look-like-exponents",
        )
    return Factors(**both, count=count)


def _from_text(end: Any) -> Any:
    """YAML reads 1e-5 as a text: it wants 1.0e-5."""
    if isinstance(end, str):
        try:
            return float(end)
        except ValueError:
            return end
    return end


def _choice(values: Any, path: Path, name: str) -> Choice:
    if not isinstance(values, list | tuple) or not values:
        message = f"{dotted(path)}.{name}: {values!r}"
        raise UsageError(message, hint="a list of at least one value", code="search-no-choice")
    return Choice(values=tuple(values))


def _whole(low: Any, high: Any, count: int | None, path: Path, names: tuple[str, str] = ("minval", "maxval")) -> Whole:
    for end, name in zip((low, high), names, strict=True):
        if not isinstance(end, int) or isinstance(end, bool):
            raise UsageError(f"{dotted(path)}.{name}: {end!r}", hint="a whole number", code="search-not-a-whole-number")
    _check_order(low, high, path)
    return Whole(low=low, high=high, count=count)


def _ends(low: Any, high: Any, path: Path, names: tuple[str, str] = ("minval", "maxval")) -> dict[str, float]:
    ends = [_number(end, path, name) for end, name in zip((low, high), names, strict=True)]
    _check_order(ends[0], ends[1], path)
    return {"low": ends[0], "high": ends[1]}


def _number(value: Any, path: Path, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        hint = "a number; YAML reads 1e-5 as a text, 1.0e-5 as a number" if isinstance(value, str) else "a number"
        raise UsageError(f"{dotted(path)}.{name}: {value!r}", hint=hint, code="search-not-a-number")
    return float(value)


def _check_order(low: float, high: float, path: Path) -> None:
    if low >= high:
        raise UsageError(
            f"{dotted(path)}: from {low} to {high}",
            hint="the first must be the smaller one",
            code="search-ends-swapped",
        )


def _count(count: Any, path: Path) -> int | None:
    if count is None:
        return None
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _LARGEST_COUNT:
        raise UsageError(
            f"{dotted(path)}.count: {count!r}", hint=f"a whole number from 1 to {_LARGEST_COUNT}", code="search-count"
        )
    return count


def _in_steps(leaf: AnyLeaf, path: Path, step: int) -> AnyLeaf:
    """A batch is cut into `step` micro-batches of the same size."""
    hint = f"multiples of {step}, the number of micro-batches (resources.slots_per_trial)"
    if isinstance(leaf, Whole):
        if (stepped := replace(leaf, step=step)).size == 0:
            message = f"{dotted(path)}: no multiple of {step} between {leaf.low} and {leaf.high}"
            raise UsageError(message, hint=hint, code="search-batch-size")
        return stepped
    values = leaf.values if isinstance(leaf, Choice) else (leaf.value,) if isinstance(leaf, Constant) else ("a range",)
    for value in values:
        if not isinstance(value, int) or value % step:
            raise UsageError(
                f"{dotted(path)}: {value} is not a multiple of {step}", hint=hint, code="search-batch-size"
            )
    return leaf
