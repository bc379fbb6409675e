"""Between experiments and the pool: trials that want slots, and the slots that they hold.

Experiments know which trials want to train; the pool knows which slots there are. Neither knows more of the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from everstep import wire


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
    """What the pool asks of experiments."""

    def candidates(self) -> Sequence[Candidate]: ...

    def order(self, candidate: Candidate) -> wire.AssignmentOrder: ...

    async def placed(self, candidate: Candidate, assignment: int) -> None: ...

    async def vacated(self, experiment: int, trial: int, assignment: int, end: AssignmentEnd) -> None: ...


class SlotHolder(Protocol):
    """What experiments ask of the pool."""

    def holds(self, experiment: int, trial: int) -> int: ...

    async def release(self, experiment: int, trial: int, how: str, reason: str) -> None: ...

    def note_change(self) -> None: ...
