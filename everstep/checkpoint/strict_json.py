"""Read untrusted JSON: nothing runs, nothing is guessed, and each error names its place.

Pure. Knows nothing of checkpoints but their error."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, is_dataclass
from types import UnionType
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from everstep.errors import CheckpointBroken, UsageError

HINT = "the file is damaged or not from Everstep: load another checkpoint (`everstep checkpoint verify` checks all)"


def broken(where: str, what: str, *, offset: int | None = None) -> NoReturn:
    at = f" at byte {offset:,}" if offset is not None else ""
    broken_text(f"{where}{at}: {what}")


def broken_text(text: str) -> NoReturn:
    raise CheckpointBroken(text, hint=HINT, code="checkpoint-damaged")


def parse_json(text: bytes, where: str, *, offset: int = 0) -> Any:
    """The value, or CheckpointBroken that names the byte. A key must not occur twice: readers disagree on it."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(items)
        if len(value) != len(items):
            seen: set[str] = set()
            for key, _ in items:
                if key in seen:
                    broken(where, f"key {key[:80]!r} occurs twice")
                seen.add(key)
        return value

    def constant(name: str) -> NoReturn:
        broken(where, f"expected JSON, found {name}")

    try:
        return json.loads(text.decode(), object_pairs_hook=pairs, parse_constant=constant)
    except UnicodeDecodeError as error:
        broken(where, "expected UTF-8", offset=offset + error.start)
    except json.JSONDecodeError as error:
        broken(where, f"expected JSON: {error.msg}", offset=offset + error.pos)
    except RecursionError:
        broken(where, "values are nested too deeply")
    except ValueError as error:  # an integer of thousands of digits
        broken(where, f"expected JSON: {error}")


def parse(kind: Any, value: Any, where: str, name: str = "value") -> Any:
    """The value as this type, or CheckpointBroken: nothing is converted except lists to tuples, objects to dataclasses,
    and the texts of floats that JSON lacks. Whole numbers are natural ones, and True is not a number."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any or (origin is UnionType and value is None):
        return value
    if is_dataclass(kind):
        return _parse_object(kind, value, where)
    if origin is UnionType:
        return parse(inner[0], value, where, name)
    if origin is tuple and isinstance(value, list) and (inner[-1] is ... or len(inner) == len(value)):
        kinds = inner[:1] * len(value) if inner[-1] is ... else inner
        return tuple(parse(its, each, where, name) for its, each in zip(kinds, value, strict=True))
    if origin is dict and isinstance(value, dict):
        return {key: parse(inner[1], each, where, f"{name} {key[:80]}") for key, each in value.items()}
    if kind is float and (type(value) in (int, float) or value in ("nan", "inf", "-inf")):
        return float(value)
    if type(value) is not kind or (kind is int and value < 0):
        expected = "a natural number" if kind is int else "list" if origin is tuple else (origin or kind).__name__
        broken(where, f"{name!r} must be {expected}, found {shown(value)}")
    return value


def _parse_object(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        broken(where, f"expected an object, found {shown(value)}")
    hints = _hints(kind)
    for name in hints:
        if name not in value:
            broken(where, f"{name!r} is missing")
    try:
        return kind(**{name: parse(hint, value[name], where, name) for name, hint in hints.items()})
    except (UsageError, ValueError, OverflowError) as error:
        broken(where, error.message if isinstance(error, UsageError) else str(error))


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


@dataclass(frozen=True, slots=True)
class _Formatted:
    format: int


def format_of(record: Any, where: str) -> int:
    """To be looked at before the rest, which another format may not have."""
    return int(parse(_Formatted, record, where).format)


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
