"""Generations that no coordinator makes."""

from __future__ import annotations

from collections.abc import Callable

from everstep.engine.fixed_world import LoneMembership
from everstep.engine.group import Group


class Generations(LoneMembership):
    """Each generation is formed when the previous one is broken. `form`: forms the group of the next generation."""

    def __init__(self, worker: str, form: Callable[[int], Group]) -> None:
        self.worker, self._form = worker, form
        self._is_closed = False

    def is_closed(self, generation: int) -> bool:
        return self._is_closed

    def report_broken(self, generation: int, reason: str, *, must_probe: bool = False) -> None:
        self._is_closed = True
        self._group.break_()

    def next_group(self, after: int) -> Group:
        self._is_closed = False
        self._group = self._form(after)
        return self._group
