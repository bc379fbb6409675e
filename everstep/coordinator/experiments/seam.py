"""What experiments and pools know of each other: trials that want slots, and the slots that they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from everstep import wire

KILL = "kill"  # how to release a slot: at once, or wire.PARK: save first


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A trial that wants a slot or has one."""

    experiment: int
    trial: int
    trial_id: int
    job: str
    rank: tuple[int, ...]  # smaller first
    is_waiting: bool  # at a rung, for the search
    waiting_since: float  # coordinator's clock; 0.0 if not waiting


@dataclass(frozen=True, kw_only=True, slots=True)
class AssignmentEnd:
    exit_code: int
    was_asked: bool
    is_lost: bool
    reason: str


class TrialSource(Protocol):
    def candidates(self) -> Sequence[Candidate]:
        """In memory, cheap."""

    def order(self, candidate: Candidate) -> wire.AssignmentOrder:
        """Number and slot are filled in by the pool."""

    def note_parking(self, experiment: int, trial: int) -> None:
        """The trial is asked to give its slot back: its next question is answered so."""

    def note_kinds(self, kinds: frozenset[str]) -> None:
        """Of the machines whose slots trials may get now."""

    async def placed(self, candidate: Candidate, assignment: int, kind: str) -> None:
        """The trial has this assignment, on this kind of machine, and no process yet."""

    async def vacated(self, experiment: int, trial: int, assignment: int, end: AssignmentEnd) -> None:
        """The assignment's process has ended. May be repeated."""

    async def buried(self, experiment: int, trial: int, assignment: int) -> None:
        """All that ran as this assignment, which was lost, is dead for certain. May be repeated."""


class SlotHolder(Protocol):
    def holds(self, experiment: int, trial: int) -> int:
        """Number of slots."""

    async def release(self, experiment: int, trial: int, how: str, reason: str) -> None:
        """`how`: park or kill."""

    def note_change(self) -> None:
        """Candidates changed: decide again soon."""


class NoSlots:
    """Holds nothing."""

    def holds(self, experiment: int, trial: int) -> int:
        return 0

    async def release(self, experiment: int, trial: int, how: str, reason: str) -> None: ...

    def note_change(self) -> None: ...
