"""Messages to JSON and back, for clients. The coordinator's edge validates what it reads more strictly."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

_T = TypeVar("_T")


def to_json(message: Any) -> bytes:
    return _ENCODER.encode(message).encode()


def valid_texts(value: Any) -> Any:
    """Any JSON value, with Unicode texts only: a byte of an argument that Python could not decode looks as in its
    own escapes, such as \\udcff."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {valid_texts(name): valid_texts(each) for name, each in value.items()}
    return [valid_texts(each) for each in value] if isinstance(value, list | tuple) else value


def from_json(kind: type[_T], body: bytes | dict[str, Any]) -> _T:
    """Build `kind` from a reply, ignoring fields that a newer coordinator may have added."""
    values = body if isinstance(body, dict) else json.loads(body)
    known, nested = _shape(kind)  # type: ignore[arg-type]
    values = {name: value for name, value in values.items() if name in known}
    for name, (is_list, inner) in nested.items():
        if name in values:
            value = values[name]
            if value is not None:
                values[name] = [from_json(inner, each) for each in value] if is_list else from_json(inner, value)
    return kind(**values)


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


def _as_dict(message: Any) -> dict[str, Any]:
    """One level, without copies: `asdict` took longer than the rest of a reply."""
    return {name: getattr(message, name) for name in _names(type(message))}  # type: ignore[arg-type]


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_as_dict)


@cache
def _shape(kind: type[Any]) -> tuple[frozenset[str], dict[str, tuple[bool, type[Any]]]]:
    """The fields of a message, and which of them hold a message or a list of messages."""
    hints, nested = get_type_hints(kind), dict[str, tuple[bool, type[Any]]]()
    for name, hint in hints.items():
        is_list = get_origin(hint) is list
        inner = get_args(hint)[0] if is_list or isinstance(hint, UnionType) else hint  # `X | None`
        if isinstance(inner, type) and is_dataclass(inner):
            nested[name] = (is_list, inner)
    return frozenset(f.name for f in fields(kind)), nested
