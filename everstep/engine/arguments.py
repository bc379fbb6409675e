"""What a script may give to the doors: a count, or an object of a certain kind. Anything else is refused by name."""

from __future__ import annotations

from typing import Any

from everstep.errors import UsageError


def check_count(name: str, value: Any, *, of: str, code: str) -> int:
    if type(value) is not int or value < 1:
        raise UsageError(f"{name}={value!r}", hint=f"give a whole number of {of}, 1 or more", code=code)
    return value


def check_kind(call: str, value: Any, kind: type | tuple[type, ...], *, hint: str, code: str) -> None:
    """`call`: what was called, or has returned the value."""
    if not isinstance(value, kind):
        raise UsageError(f"{call}: an object of type {type(value).__name__}", hint=hint, code=code)
