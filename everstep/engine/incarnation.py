"""This process's name at the coordinator: drawn once and used in every call.

Kept per process number: workers are forks of one that may have drawn a name already, and must not share it."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass


@dataclass(slots=True)
class _Name:
    pid: int
    name: str
    is_announced: bool = False


_mine: _Name | None = None


def current() -> str:
    return _drawn().name


def announce() -> str:
    """To announce this process: if it was announced before, it begins another life with another name."""
    global _mine
    if _drawn().is_announced:
        _mine = None
    mine = _drawn()
    mine.is_announced = True
    return mine.name


def _drawn() -> _Name:
    global _mine
    if _mine is None or _mine.pid != os.getpid():
        _mine = _Name(os.getpid(), uuid.uuid4().hex)
    return _mine
