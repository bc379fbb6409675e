"""Messages between a pool's agents and the coordinator.

A slot is one worker's place on a node. An assignment gives a slot to a trial; its number is used once. Both sides say
all they have in each call, so a lost or repeated one changes nothing: an agent starts assignments
that are in its orders and do not run, and ends those that run and are not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from everstep.wire.bounds import Amount, Bounds, Count, Name, OneOf, Positive, Whole

DEFAULT_POOL = "default"  # the one whose slots trials get
DEFAULT_PRIORITY, MOST_PRIORITY = 42, 99
LEAST_WEIGHT, MOST_WEIGHT = 1e-6, 1e6  # far beyond these, sums of weights lose the smaller ones
MOST_SLOTS = 1024  # of a node
MOST_POOL_SLOTS = 10_000  # of the nodes of a pool together
MOST_RUNNING = 1000  # trials of a pool that run at a time; the others wait
MAX_REASON = 2000  # characters
MOST_QUEUED = 100  # waiting trials of an experiment that a view names
MOST_PARKED = 100  # trials whose states a node may hold
ASSIGNMENT_STATES = ("starting", "running", "ended")
# Of an agent. Draining: its trials leave, and it gets no new ones. Disabled: its trials stay, and it gets no new ones.
ENABLED, DRAINING, DISABLED = "enabled", "draining", "disabled"
AGENT_STATES = (ENABLED, DRAINING, DISABLED)
MOST_AGENTS = 1_000  # named in one call, whose body has its own bound


def trial_node(agent: str, assignment: int) -> str:
    """The node of a trial's job that runs this assignment of a pool's agent."""
    return f"{agent}-{assignment}"


def agent_of(node: str) -> str:
    """The pool's agent of a trial's node."""
    return node.rpartition("-")[0] or node


@dataclass(frozen=True, kw_only=True, slots=True)
class AssignmentState:
    """An assignment as its agent sees it."""

    number: Positive
    state: Annotated[str, OneOf(*ASSIGNMENT_STATES)]
    exit_code: Whole = 0  # of its node's process, once it has ended; negative: ended by that signal
    was_asked: bool = False  # to end
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeEnvironment:
    """What trials find on a node."""

    image: Name = ""  # of the container that the node is; "": none, or unknown
    python: Name = ""  # its version
    prefix: Annotated[str, Bounds(max_length=4096)] = ""  # of the Python environment
    torch: Name = ""
    slot_memory_bytes: Count = 0  # a slot's share of the node's memory; 0: unknown
    slot_cpus: Count = 0  # its share of the cores


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolReport:
    incarnation: Name
    num_slots: Annotated[int, Bounds(ge=0, le=MOST_SLOTS)]
    kind: Name = ""  # of machine: what bits depend on
    assignments: list[AssignmentState] = field(default_factory=list)  # all, also ended ones until they are confirmed
    seen: Count = 0  # the number of the last orders received; held while they have not changed
    wait_s: Amount = 1.0
    leaves_at: Amount = 0.0  # time of day: then its trials leave, and the node ends; 0: it stays
    environment: NodeEnvironment = NodeEnvironment()
    parked: Annotated[list[Name], Bounds(max_length=MOST_PARKED)] = field(
        default_factory=list
    )  # keys of trials whose last states are in this node's memory


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
    token: str = field(default="", repr=False)  # of the trial, for its workers
    secrets: dict[str, str] = field(default_factory=dict, repr=False)  # values of environment variables
    key: str = ""  # that no other trial has, of this coordinator or another: names its folders on machines
    warm_start: str = ""  # uuid of a checkpoint whose weights the trial begins with
    warm_start_uri: str = ""
    warm_start_step: int = 0
    resume_from: str = ""  # uuid of a checkpoint of the same training, which the trial continues
    resume_from_uri: str = ""
    resume_from_step: int = 0


KILL = "kill"  # how to end: at once; or PARK: save and leave


@dataclass(frozen=True, kw_only=True, slots=True)
class EndOrder:
    number: int
    how: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolOrders:
    number: int  # counts up with each change
    run: list[AssignmentOrder]  # all that should run here
    end: list[EndOrder]
    confirmed: list[int]  # ended assignments that need not be reported any more
    is_closing: bool = False  # end all, and leave
    state: str = ENABLED  # of the agent …
    state_reason: str = ""  # … and why, for people
    over: list[str] = field(default_factory=list)  # of the parked trials: those that will not continue


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotView:
    slot: int
    assignment: int  # 0: free
    experiment: int
    trial: int
    since: float
    owner: str = ""  # of the experiment
    state: str = ""  # given, parking, killing; "": free
    reason: str = ""  # why the trial has it, or must give it back


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolAgentView:
    agent: str
    kind: str
    is_present: bool
    slots: list[SlotView]
    state: str = ENABLED
    state_reason: str = ""
    environment: NodeEnvironment = NodeEnvironment()


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolView:
    pool: str
    agents: list[PoolAgentView]
    num_slots: int
    num_free: int
    num_queued: int  # trials that want a slot
    num_wanted: int = 0  # slots: those that trials hold, and those that others wait for
    nodes: PoolNodes | None = None  # what makes nodes for the pool says; None: nothing does


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolList:
    pools: list[PoolView]


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentsChange:
    """Which agents of a pool get work. Repeated changes change nothing. An agent keeps its state when it is started
    again."""

    state: Annotated[str, OneOf(*AGENT_STATES)]
    agents: Annotated[list[Name], Bounds(max_length=MOST_AGENTS)] = field(default_factory=list)
    is_all: bool = False  # all agents that the pool knows now
    reason: Annotated[str, Bounds(max_length=MAX_REASON)] = ""

    def problems(self) -> Iterator[str]:
        if self.is_all == bool(self.agents):
            yield "name agents, or set is_all"


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuedTrial:
    trial: int
    position: int  # in the queue, from 1
    reason: str  # why it waits


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueEntry:
    """An experiment that holds slots of the pool, or wants some."""

    position: int  # of its first waiting trial, from 1; 0: none waits
    experiment: int
    name: str
    state: str
    owner: str
    priority: int
    weight: float
    num_running: int  # trials that hold slots …
    num_waiting: int  # … and trials that want their first
    num_held: int  # slots
    num_wanted: int  # slots that its trials can use now, including those that they hold
    num_share: int  # slots of enabled nodes that the latest decision gives it
    reason: str  # why its first waiting trial waits
    waiting: list[QueuedTrial]  # the first MOST_QUEUED


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueView:
    pool: str
    entries: list[QueueEntry]  # those that wait in the order of the queue, after those that do not
    num_waiting: int  # trials


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolNodes:
    """What makes a pool's nodes, on a platform, says of them."""

    platform: Annotated[str, Bounds(max_length=100)]
    min_nodes: Count
    max_nodes: Positive
    num_nodes: Count  # that run, or are on their way
    num_joining: Count = 0  # of these, on their way
    most_slots: Count = 0  # that the pool can ever have; 0: unknown
    reason: Annotated[str, Bounds(max_length=MAX_REASON)] = ""
    dead: Annotated[list[Name], Bounds(max_length=MOST_AGENTS)] = field(default_factory=list)  # no process is left


@dataclass(frozen=True, kw_only=True, slots=True)
class DayUse:
    """What a person has used of a pool on a day."""

    day: str  # 2025-12-31, in UTC
    person: str  # "": experiments without an owner
    slot_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolUse:
    pool: str
    use: list[DayUse]  # by day, then by person; nothing for those who used nothing
