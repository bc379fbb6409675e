"""What experiments and pools know about each other: trials that want slots, and the slots that they hold."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from everstep import wire
from everstep.wire.pool import DEFAULT_POOL, DEFAULT_PRIORITY


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A trial that wants slots or has some."""

    experiment: int
    trial: int
    trial_id: int
    job: str
    rank: tuple[int, ...]  # smaller first
    is_waiting: bool  # at a rung, for the search
    waiting_since: float  # coordinator's clock; 0.0 if not waiting
    pool: str = DEFAULT_POOL
    person: str = ""  # the owner of the experiment
    priority: int = DEFAULT_PRIORITY  # smaller first
    weight: float = 1.0  # of the experiment, among those of equal priority
    experiment_max_slots: int = 0  # of all its trials together; 0: no limit
    min_slots: int = 1  # all of these, or none
    max_slots: int = 1  # that it can use now; as min_slots if it may not grow
    batches_left: float | None = None  # to its target; None: unknown
    kind: str = ""  # of the machines that it must run on; "": any
    is_exact: bool = False  # all trials of the experiment must run on one kind of machine
    queued_at: float = 0.0  # since when it wants slots; a parked trial keeps this
    excluded: frozenset[str] = frozenset()  # agents whose slots it must not get
    preemption_timeout_s: float = 600.0  # an assignment that is parked for others is killed after this


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialPace:
    """How fast a trial trains whose workers train together. Times are by the coordinator's clock."""

    generation: int
    size: int  # workers in it
    step: int  # that they have committed …
    at: float  # … when this was reported
    formed_at: float
    nodes: frozenset[str]  # of its workers
    is_waiting: bool  # for the search


@dataclass(frozen=True, kw_only=True, slots=True)
class AssignmentEnd:
    exit_code: int
    was_asked: bool
    is_lost: bool
    reason: str


class TrialSource(Protocol):
    def candidates(self) -> Sequence[Candidate]:
        """The trials that want slots or have some. Cheap: read from memory."""

    def order(self, candidate: Candidate) -> wire.AssignmentOrder:
        """The order to run a trial. The pool fills in number and slot."""

    def ended(self, keys: Collection[str]) -> list[str]:
        """The keys of those trials that will not continue."""

    def note_parking(self, experiment: int, trial: int) -> None:
        """The trial must give its slot back: its next question is answered with park."""

    def note_shrinking(self, experiment: int, trial: int) -> None:
        """Some of its workers leave. The trial must notice soon, even while it waits."""

    def progress(self, experiment: int, trial: int) -> TrialPace | None:
        """The trial's pace; None unless its workers are known to train together. Cheap: read from memory."""

    def refuse(self, experiment: int, reason: str) -> None:
        """The pool can never give it what it needs."""

    def note_kinds(self, kinds: Mapping[str, frozenset[str]]) -> None:
        """By pool: the kinds of the machines whose slots trials may get now."""

    async def placed(self, candidate: Candidate, assignment: int, kind: str, *, is_first: bool) -> bool:
        """The trial got this assignment, on this kind of machine, but has no process there yet. `is_first`: it holds
        no other slot. False: the trial no longer wants the slot."""

    async def vacated(
        self, experiment: int, trial: int, assignment: int, end: AssignmentEnd, others: Sequence[int]
    ) -> None:
        """The assignment's process has ended; the trial still has the `others`. May be repeated."""

    async def buried(self, experiment: int, trial: int, assignment: int) -> None:
        """All processes of this lost assignment are confirmed dead. May be repeated."""


class SlotHolder(Protocol):
    def holds(self, experiment: int, trial: int) -> int:
        """How many slots the trial holds."""

    def why_queued(self, experiment: int, trial: int) -> str:
        """Why the trial has no slot, according to the latest decision; empty: it is not in the queue."""

    def is_shrinking(self, experiment: int, trial: int) -> bool:
        """Whether some of its slots are being released."""

    def why_never(self, candidate: Candidate) -> str | None:
        """Why its pool can never give it what it needs; None: it can, as far as is known."""

    async def release(self, experiment: int, trial: int, how: str, reason: str) -> None:
        """`how`: wire.PARK or wire.KILL."""

    def images(self) -> Mapping[str, Collection[str]]:
        """The container images of each pool's nodes; "": none."""

    def note_change(self) -> None:
        """Candidates changed: decide again soon."""


class NoSlots:
    """No trial holds a slot, and none gets one."""

    def holds(self, experiment: int, trial: int) -> int:
        return 0

    def why_queued(self, experiment: int, trial: int) -> str:
        return ""

    def is_shrinking(self, experiment: int, trial: int) -> bool:
        return False

    def why_never(self, candidate: Candidate) -> str | None:
        return None

    async def release(self, experiment: int, trial: int, how: str, reason: str) -> None: ...

    def images(self) -> Mapping[str, Collection[str]]:
        return {}

    def note_change(self) -> None: ...
