"""Which worker reports for all (rank 0), in which generation, and which workers train together with it.

An engine provides its world, and knows when that changes. Before it has joined, and without an engine, torchrun's
variables provide it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from everstep import env


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    is_reporter: bool
    generation: int = 0


class TrainingPeers(Protocol):
    """All workers that train together, this one included."""

    @property
    def is_several(self) -> bool: ...

    @property
    def is_asked_to_leave(self) -> bool:
        """This worker, by SIGTERM."""

    def gather(self, value: Any) -> list[Any] | None:
        """What all say here, plain data by rank. None: this worker missed it."""

    def leave(self) -> None:
        """Between two steps, with all others: does not return. In a step it does: the step's end comes first."""

    def part(self, *, is_leaver: bool) -> None:
        """Between two steps, those that were asked to leave go: for them, it does not return. The others continue."""


_find: Callable[[], Standing | None] | None = None
_peers: TrainingPeers | None = None


def follow(find: Callable[[], Standing | None], peers: TrainingPeers | None = None) -> None:
    """Ask these from now on; `find` answers None while it does not know."""
    global _find, _peers
    _find, _peers = find, peers


def current_peers() -> TrainingPeers | None:
    """None: there is no engine, or it has not joined."""
    return _peers if _find is not None and _find() is not None else None


def current() -> Standing:
    found = _find() if _find is not None else None
    return found or Standing(is_reporter=env.torchrun_rank() == 0)
