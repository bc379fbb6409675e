"""Messages between workers that share data and the agent of their node, which keeps it (ipc/local_socket.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args


@dataclass(frozen=True, kw_only=True, slots=True)
class AskData:
    """From a worker: give me this data. The answer comes when it is there; or the worker is to load it itself."""

    key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadData:
    """To one of those that ask: load it, and send `DataLoaded` or `NotLoaded`."""

    key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DataLoaded:
    """With its file, which cannot change any more: from the worker that has loaded it, and to all that ask."""

    key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NotLoaded:
    """Its worker could not load it: the next one tries."""

    key: str


Message = AskData | LoadData | DataLoaded | NotLoaded
KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Message)}
