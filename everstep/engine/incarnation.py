"""This process's name at the coordinator: drawn once and used in every call.

Kept per process number: workers are forks of one that may have drawn a name already, and must not share it."""

from __future__ import annotations

import os
import uuid

_names: dict[int, str] = {}  # by process number
_announced: set[str] = set()


def current() -> str:
    return _names.setdefault(os.getpid(), uuid.uuid4().hex)


def announce() -> str:
    """To announce this process: if it was announced before, it begins another life with another name."""
    if current() in _announced:
        del _names[os.getpid()]
    _announced.add(current())
    return current()
