"""What the pool knows when it decides, and what it decides: plain values.

A trial may hold several assignments; each gives it one slot. Times are by the coordinator's clock, unless noted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from everstep.coordinator.experiments.seam import Candidate
from everstep.coordinator.pool.people import NOBODY, People
from everstep.wire.pool import DEFAULT_POOL

GIVEN, PARKING, KILLING = "given", "parking", "killing"  # the slot is taken
ENDED, LOST = "ended", "lost"  # the slot is free
LIVE = (GIVEN, PARKING, KILLING)

SETTLE_S = 5.0
START_S = 1.0

TrialKey = tuple[int, int]  # experiment and trial


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """A slot, given to a trial."""

    number: int  # never used again
    pool: str
    agent: str
    slot: int
    experiment: int
    trial: int
    state: str
    reason: str
    began_at: float  # time of day
    ended_at: float | None = None

    @property
    def is_live(self) -> bool:
        return self.state in LIVE

    @property
    def key(self) -> TrialKey:
        return (self.experiment, self.trial)

    @property
    def at(self) -> tuple[str, str]:
        """Pool and agent."""
        return (self.pool, self.agent)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFacts:
    agent: str
    num_slots: int
    kind: str = ""
    is_open: bool = True  # present, enabled, and runs only what it should; if not: its trials stay, nothing new
    is_leaving: bool = False  # its trials must leave
    leaves_at: float | None = None  # its time ends then; its trials leave before


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialSpeed:
    """How fast a trial trains and starts, as measured."""

    batches_per_s: Mapping[int, float] = field(default_factory=dict)  # by number of slots
    start_s: float = START_S  # from an order to the newcomer's first step


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolFacts:
    now: float
    candidates: Sequence[Candidate]
    nodes: Sequence[NodeFacts]
    assignments: Sequence[Assignment]  # those that are over are ignored
    pool: str = DEFAULT_POOL
    people: People = NOBODY
    owners: Mapping[int, str] = field(default_factory=dict)  # of experiments that hold slots, even if they want none
    speeds: Mapping[TrialKey, TrialSpeed] = field(default_factory=dict)
    used_by_person: Mapping[str, float] = field(default_factory=dict)  # slot-seconds lately, see RecentUse
    used_by_experiment: Mapping[int, float] = field(default_factory=dict)
    resized_at: Mapping[TrialKey, float] = field(default_factory=dict)  # last time that it got or gave a slot
    parking_since: Mapping[int, float] = field(default_factory=dict)  # by number, of assignments that are being parked
    most_slots: int | None = None  # that the pool can ever have; None: unknown
    most_of_kind: Mapping[str, int] | None = None  # the same for each kind of machine; None: unknown
    is_complete: bool = True  # False: nodes with assignments have not reported yet, so nothing is taken back
    settle_s: float = SETTLE_S  # a trial is not resized again before, unless others need a slot to start


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    candidate: Candidate
    agent: str
    slot: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotRelease:
    number: int  # of the assignment
    how: str  # wire.PARK or wire.KILL
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuePlace:
    """A trial without slots that wants some."""

    experiment: int
    trial: int
    position: int  # from 1
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Impossible:
    """A request that the pool can never meet."""

    experiment: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolDecision:
    give: tuple[Grant, ...] = ()
    release: tuple[SlotRelease, ...] = ()
    queue: tuple[QueuePlace, ...] = ()
    impossible: tuple[Impossible, ...] = ()
    num_wanted: int = 0  # slots that all trials together could use now
    shares: Mapping[int, int] = field(default_factory=dict)  # slots of open nodes, by experiment
    look_at: float | None = None  # when time alone may change it
