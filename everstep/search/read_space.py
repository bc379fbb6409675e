"""Reads a space from the job file's `hyperparameters`. Every error names the hyperparameter and its numbers."""

from __future__ import annotations

import math
import sys
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
_MOST_POWER = 3.4e38
_SMALL_EXPONENT = 0.1  # base 10: 1.26. A smaller positive number is probably meant as a value


def read_space(given: Mapping[str, Any] | None, *, num_micro_batches: int = 1) -> Space:
    """`num_micro_batches`: global_batch_size takes only multiples of it, because a batch is cut into that many."""
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(
            f"hyperparameters: {given!r} is not a mapping",
            hint="for example, hyperparameters: {lr: 0.1}",
            code="hyperparameters-not-a-map",
        )
    leaves = sorted(_leaves(given or {}, ()), key=lambda each: [name.encode() for name in each[0]])
    notes = [*_constant_maps(given or {}, ())]
    for place, (path, leaf) in enumerate(leaves):
        if path == BATCH_SIZE and num_micro_batches > 1:
            leaves[place] = (path, whole := _in_steps(leaf, path, num_micro_batches))
            if isinstance(whole, Whole):
                notes.append(
                    f"{'.'.join(path)} takes the {whole.size} multiples of {num_micro_batches} micro-batches "
                    f"from {whole.first} to {whole.first + whole.step * (whole.size - 1)}"
                )
        elif isinstance(leaf, Powers):
            ends = sorted(draws.power(leaf.base, exponent) for exponent in (leaf.low, leaf.high))
            notes.append(f"{'.'.join(path)} takes values from {ends[0]:.6g} to {ends[1]:.6g}")
    return Space(leaves=tuple(leaves), notes=tuple(notes))


def _leaves(given: Any, path: Path) -> Iterator[tuple[Path, AnyLeaf]]:
    if isinstance(given, Mapping) and (given or not path) and not (path and _is_range(given)):
        _check_no_range_among(given, path)
        for name, each in given.items():
            yield from _leaves(each, (*path, _checked_name(str(name), path)))
    else:
        yield path, _leaf(given, path)


def _checked_name(name: str, path: Path) -> str:
    if not path and name == "type":
        raise UsageError(
            "hyperparameters.type: a hyperparameter cannot be called `type`",
            hint="rename it; a range needs a name, such as layers: {type: int, minval: 1, maxval: 8}",
            code="search-type-unknown",
        )
    if any("\ud800" <= each <= "\udfff" for each in name):  # half of a character
        message = f"{dotted(path)}: the name {name!r} is not valid Unicode"
        raise UsageError(message, hint="use other characters", code="search-name-not-unicode")
    return name


def _check_no_range_among(given: Mapping[str, Any], path: Path) -> None:
    """A range with a wrong key beside it would become constants."""
    kind = next((kind for kind in _SHORT if isinstance(given.get(kind), list | tuple)), None)
    if path and kind is not None:
        others = ", ".join(str(name) for name in given if name != kind)
        raise UsageError(
            f"{dotted(path)}: a range {kind}: {list(given[kind])} has no {others}",
            hint=f"remove {others}; if the map is a constant, write {{type: const, val: {{{kind}: ...}}}}",
            code="search-key-unknown",
        )


def _constant_maps(given: Any, path: Path) -> Iterator[str]:
    """Notes about maps that look like ranges, but are constants."""
    if not isinstance(given, Mapping) or (path and _is_range(given)):
        return
    keys = sorted({"minval", "maxval", "vals"} & given.keys())
    if keys and "type" not in given:
        yield f"{dotted(path)} is a constant map, not a range: it has {' and '.join(keys)}, but no type"
    kinds = [kind for kind in _SHORT if kind in given and not isinstance(given[kind], Mapping)]
    if path and kinds and given.keys() <= {kinds[0], "count"}:
        yield f"{dotted(path)} is a constant map, not a range: {kinds[0]} is not a list"
    for name, each in given.items():
        yield from _constant_maps(each, (*path, str(name)))


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
    return _constant(given, path)


def _constant(value: Any, path: Path) -> Constant:
    _check_finite(value, path)
    return Constant(value=value)


def _check_finite(value: Any, path: Path) -> None:
    """JSON, in which hyperparameters travel, has no other numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        message = f"{dotted(path)}: {value} is not a finite number"
        raise UsageError(message, hint="write it as a string for your script to convert", code="search-not-a-number")
    if isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            _check_finite(each, path)


def _check_list(given: Any, path: Path) -> None:
    """Determined's form stays a constant in there, as it is in Determined."""
    for each in given:
        if isinstance(each, Mapping) and _short_kind(each) is not None:
            raise UsageError(
                f"{dotted(path)}: {dict(each)} inside a list; a list is one constant",
                hint="give each element its own name, or use choice with whole lists",
                code="search-range-in-a-list",
            )
        if isinstance(each, Mapping | list | tuple):
            _check_list(each.values() if isinstance(each, Mapping) else each, path)


def _determined(given: Mapping[str, Any], path: Path) -> AnyLeaf:
    kind = given["type"]
    if not isinstance(kind, str) or kind not in _KEYS:
        raise UsageError(
            f"{dotted(path)}.type: {kind!r} is not a type of hyperparameter",
            hint="use const, int, double, log or categorical; a hyperparameter cannot be called `type`",
            code="search-type-unknown",
        )
    required, optional = _KEYS[kind]
    if missing := sorted(required - given.keys()):
        message = f"{dotted(path)}: {kind} without {' and '.join(missing)}"
        hint = f"{kind} needs {', '.join(sorted(required))}"
        if kind == "log" and {"minval", "maxval"} <= given.keys():
            values = f"{{log: [{given['minval']}, {given['maxval']}]}}"
            hint = f"{hint}; minval and maxval are exponents. For values, write {values}"
        raise UsageError(message, hint=hint, code="search-key-missing")
    if unknown := sorted(map(str, given.keys() - required - optional - {"type"})):
        known = ", ".join(sorted(required | optional))
        raise UsageError(
            f"{dotted(path)}: {kind} has no {', '.join(unknown)}", hint=f"its keys: {known}", code="search-key-unknown"
        )
    if kind == "const":
        return _constant(given["val"], path)
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
        message = f"{dotted(path)}.base: {base} is not valid"
        raise UsageError(message, hint="use a number above 0", code="search-base-not-positive")
    leaf = Powers(base=base, **_ends(low, high, path), count=count)
    _check_exponents(leaf, path)
    return leaf


def _check_exponents(leaf: Powers, path: Path) -> None:
    text = f"{dotted(path)}: log with base {leaf.base:g}, minval {leaf.low:g} and maxval {leaf.high:g}"
    largest, exponent = max((each * math.log(leaf.base), each) for each in (leaf.low, leaf.high))
    smallest = min(each * math.log(leaf.base) for each in (leaf.low, leaf.high))
    if largest > math.log(_MOST_POWER):
        message = f"{text}: {leaf.base:g}^{exponent:g} is above {_MOST_POWER:g}, the largest 32-bit number"
    elif smallest < math.log(sys.float_info.min):
        least = math.ceil(math.log(sys.float_info.min, leaf.base)) if leaf.base > 1 else leaf.low
        raise UsageError(
            f"{text}: its smallest values are too small for a float, and would be 0",
            hint=f"use a larger exponent, such as minval: {max(least, -5)}",
            code="search-powers-too-small",
        )
    elif 0 < leaf.low < _SMALL_EXPONENT or 0 < leaf.low < leaf.high <= 1:
        ends = f"from {_power(leaf, leaf.low)} to {_power(leaf, leaf.high)}"
        message = f"{text}: these are exponents, so the values would be {ends}"
    else:
        return
    raise UsageError(
        message,
        hint=f"for values, write {{log: [{leaf.low:g}, {leaf.high:g}]}}; for exponents, write minval: -5, for example",
        code="search-exponents-look-like-values",
    )


def _power(leaf: Powers, exponent: float) -> str:
    return f"{draws.power(leaf.base, exponent):.6g}"


def _short(kind: str, given: Mapping[str, Any], path: Path) -> AnyLeaf:
    count = _count(given.get("count"), path)
    if kind == "choice":
        if count is not None:
            message = f"{dotted(path)}: choice takes no count"
            raise UsageError(message, hint="remove it: a grid takes all values of a choice", code="search-key-unknown")
        _check_list(given[kind], path)
        return _choice(given[kind], path, kind)
    ends = given[kind]
    if len(ends) != 2:
        message = f"{dotted(path)}.{kind}: {len(ends)} numbers instead of 2"
        raise UsageError(message, hint=f"write {{{kind}: [LEAST, MOST]}}", code="search-ends-not-two")
    if kind == "int":
        return _whole(ends[0], ends[1], count, path, names=(f"{kind}[0]", f"{kind}[1]"))
    low, high = (_from_text(end) for end in ends)
    both = _ends(low, high, path, names=(f"{kind}[0]", f"{kind}[1]"))
    if kind == "double":
        return Real(**both, count=count)
    if both["low"] <= 0:
        raise UsageError(
            f"{dotted(path)}.log: [{low}, {high}] are values and must be above 0",
            hint=f"for exponents, write {{type: log, base: 10, minval: {low}, maxval: {high}}}",
            code="search-values-look-like-exponents",
        )
    return Factors(**both, count=count)


def _from_text(end: Any) -> Any:
    """YAML reads 1e-5 as text; it must be written 1.0e-5."""
    if isinstance(end, str):
        try:
            return float(end)
        except ValueError:
            return end
    return end


def _choice(values: Any, path: Path, name: str) -> Choice:
    if not isinstance(values, list | tuple) or not values:
        message = f"{dotted(path)}.{name}: {values!r} is not valid"
        raise UsageError(message, hint="use a list with at least one value", code="search-no-choice")
    _check_finite(values, path)
    return Choice(values=tuple(values))


def _whole(low: Any, high: Any, count: int | None, path: Path, names: tuple[str, str] = ("minval", "maxval")) -> Whole:
    for end, name in zip((low, high), names, strict=True):
        if not isinstance(end, int) or isinstance(end, bool):
            message = f"{dotted(path)}.{name}: {end!r} is not a whole number"
            raise UsageError(message, hint="use double for other numbers", code="search-not-a-whole-number")
    _check_order(low, high, path)
    return Whole(low=low, high=high, count=count)


def _ends(low: Any, high: Any, path: Path, names: tuple[str, str] = ("minval", "maxval")) -> dict[str, float]:
    ends = [_number(end, path, name) for end, name in zip((low, high), names, strict=True)]
    _check_order(ends[0], ends[1], path)
    return {"low": ends[0], "high": ends[1]}


def _number(value: Any, path: Path, name: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= sys.float_info.max:  # NaN is not, and a whole number may be larger
        more = "; YAML reads 1e-5 as text, but 1.0e-5 as a number" if isinstance(value, str) else ""
        message = f"{dotted(path)}.{name}: {value!r} is not valid"
        raise UsageError(message, hint=f"use a finite number{more}", code="search-not-a-number")
    return float(value)


def _check_order(low: float, high: float, path: Path) -> None:
    if low >= high:
        raise UsageError(
            f"{dotted(path)}: from {low} to {high} is not a valid range",
            hint="the first number must be smaller than the second",
            code="search-ends-swapped",
        )


def _count(count: Any, path: Path) -> int | None:
    if count is None:
        return None
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _LARGEST_COUNT:
        raise UsageError(
            f"{dotted(path)}.count: {count!r} is not valid",
            hint=f"use a whole number from 1 to {_LARGEST_COUNT}",
            code="search-count",
        )
    return count


def _in_steps(leaf: AnyLeaf, path: Path, step: int) -> AnyLeaf:
    """A batch is cut into `step` micro-batches of the same size."""
    hint = f"use {step}, the number of micro-batches (resources.slots_per_trial), or a multiple of it"
    if isinstance(leaf, Whole):
        if (stepped := replace(leaf, low=max(leaf.low, step), step=step)).size == 0:
            message = f"{dotted(path)}: no multiple of {step} between {leaf.low} and {leaf.high}"
            raise UsageError(message, hint=hint, code="search-batch-size")
        return stepped
    if not isinstance(leaf, Choice | Constant):
        message = f"{dotted(path)}: its values are not whole numbers"
        raise UsageError(message, hint=f"write {{int: [LEAST, MOST]}}, or {hint}", code="search-batch-size")
    for value in leaf.values if isinstance(leaf, Choice) else (leaf.value,):
        if not isinstance(value, int) or isinstance(value, bool) or value < step or value % step:
            message = f"{dotted(path)}: {value!r} is not a multiple of {step}"
            raise UsageError(message, hint=hint, code="search-batch-size")
    return leaf
