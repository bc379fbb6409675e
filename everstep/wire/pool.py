"""Messages between a pool's agents and the coordinator.

A slot is one worker's place on a node. An assignment gives a slot to a trial; its number is used once. Both sides say
all they have in each call, so a lost or repeated one changes nothing: an agent starts assignments
that are in its orders and do not run, and ends those that run and are not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from everstep.wire.bounds import Amount, Bounds, Count, Name, OneOf, Positive, Whole

MOST_SLOTS = 1024  # of a node
ASSIGNMENT_STATES = ("starting", "running", "ended")


def trial_node(agent: str, assignment: int) -> str:
    """The node of a trial's job that runs this assignment of a pool's agent."""
    return f"{agent}-{assignment}"


@dataclass(frozen=True, kw_only=True, slots=True)
class AssignmentState:
    """An assignment as its agent sees it."""

    number: Positive
    state: Annotated[str, OneOf(*ASSIGNMENT_STATES)]
    exit_code: Whole = 0  # of its node's process, once it has ended; negative: ended by that signal
    was_asked: bool = False  # to end
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolReport:
    incarnation: Name
    num_slots: Annotated[int, Bounds(ge=0, le=MOST_SLOTS)]
    kind: Name = ""  # of machine: what bits depend on
    assignments: list[AssignmentState] = field(default_factory=list)  # all, also ended ones until they are confirmed
    seen: Count = 0  # the number of the last orders received; held while they have not changed
    wait_s: Amount = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class AssignmentOrder:
    number: int
    slot: int
    experiment: int
    trial: int
    trial_id: int
    job: str
    hparams: dict[str, Any]
    seed: int
    order: dict[str, Any]  # the experiment's: a NodeOrder without a job
    config: dict[str, Any]  # the experiment's file
    policy: dict[str, Any]  # of the trial's job
    key: str = ""  # that no other trial has, of this coordinator or another: names its folders on machines
    warm_start: str = ""  # uuid of a checkpoint whose weights the trial begins with
    warm_start_uri: str = ""
    warm_start_step: int = 0
    resume_from: str = ""  # uuid of a checkpoint of the same training, which the trial continues
    resume_from_uri: str = ""
    resume_from_step: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class EndOrder:
    number: int
    how: str  # park: save and leave; kill: at once
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolOrders:
    number: int  # counts up with each change
    run: list[AssignmentOrder]  # all that should run here
    end: list[EndOrder]
    confirmed: list[int]  # ended assignments that need not be reported any more
    is_closing: bool = False  # end all, and leave


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotView:
    slot: int
    assignment: int  # 0: free
    experiment: int
    trial: int
    since: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolAgentView:
    agent: str
    kind: str
    is_present: bool
    slots: list[SlotView]


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolView:
    pool: str
    agents: list[PoolAgentView]
    num_slots: int
    num_free: int
    num_queued: int  # trials that want a slot
