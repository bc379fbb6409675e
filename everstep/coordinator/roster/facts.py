"""The facts about one job, as frozen values: its nodes, its workers, its latest attempt and generation,
arrivals, and wishes to leave.

Statuses, generations and the job's end are kept in the store. Arrivals, wishes and all moments in time are not:
after a restart all workers and agents report them again, and get the full time again.
Knows nothing of clocks, HTTP or storage."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from everstep.errors import UNKNOWN, Refused
from everstep.wire import OUTSIDE, Fitness, Member, Policy

ALIVE, LOST, LEFT, SENT, DEAD = "alive", "lost", "left", "sent", "dead"  # sent: asked to go, with work left to do
GONE = (LEFT, SENT, DEAD)
STARTING, WAITING_TO_JOIN, MEMBER = "starting", "waiting", "member"  # how an alive worker is shown


ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")  # of a job or a dataset
SHA256 = r"[0-9a-f]{64}"  # as a name of code


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided: a code for tests and programs, and a sentence for people."""

    code: str
    reason: str
    next_look: float | None = field(default=None, kw_only=True)  # when to decide again if nothing happens before


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    worker: str
    number: int
    agent: str
    request: str
    status: str = ALIVE
    reason: str = "reserved"
    incarnation: str = ""  # empty: reserved, its process has not announced itself yet
    pid: int = 0
    address: str = ""
    store_port: int = 0
    probe_port: int = 0
    seniority: int = -1  # order of the first announcement
    announced_in: int = 0  # the generation that was the latest when this process came: it can only be in later ones
    settled: int = 0  # the last generation whose state it says it holds
    held: int = 0  # the highest it ever said: a worker that was interrupted inside an update holds nothing any more
    step: int = 0
    micro_batch: int = -1  # the micro-batch it died in
    wants_stacks: bool = False  # it was alive but made no progress: take stack traces before killing it
    attempt: int = -1  # the start of all workers that it belongs to
    died_as: int = -1  # its rank in the generation that it was lost from
    is_stale: bool = False  # its process was there before the state was lost: what it loaded may be old


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A machine whose agent has reported. Not kept: agents say it again."""

    agent: str
    incarnation: str
    order: int  # of coming
    num_workers: int
    address: str
    probe_port: int = 0
    node_rank: int = -1
    free_port: int = 0  # rank 0 of the next attempt could listen here
    unreachable: tuple[str, ...] = ()
    fitness: Fitness | None = None  # what its check found, if there was one
    is_present: bool = True
    is_suspect: bool = False  # it hung up: either it is gone, or it reports again at once
    has_left: bool = False  # it said so itself: what it reports while it ends does not bring it back
    reason: str = "present"


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePart:
    """One node's part in an attempt."""

    agent: str
    incarnation: str
    workers: tuple[str, ...]  # by local rank
    first_rank: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """A start of all workers together. Number -1: none yet."""

    number: int = -1
    parts: tuple[NodePart, ...] = ()  # by node rank
    master_address: str = ""
    master_port: int = 0
    max_workers: int = 0  # the most that the job may ever have; the same in all its attempts
    is_closed: bool = False
    wants_stacks: bool = False  # it was closed because its workers hang
    reason: str = "no worker was started yet"

    @property
    def is_open(self) -> bool:
        return self.number >= 0 and not self.is_closed

    @property
    def size(self) -> int:
        return sum(len(part.workers) for part in self.parts)

    def node_ranks(self) -> dict[tuple[str, str], int]:
        """By agent and incarnation."""
        return {(part.agent, part.incarnation): rank for rank, part in enumerate(self.parts)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """A frozen membership. Number 0: none yet."""

    number: int = 0
    members: tuple[Member, ...] = ()  # by rank
    store_port: int = 0  # rank 0's
    continues: int = 0  # the leader must have settled in this generation or a later one
    max_workers: int | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)  # not reached by all others: who, and the sentence
    is_closed: bool = False
    is_broken: bool = False  # closed by a loss: members that wait for peers must stop waiting
    must_probe: bool = False
    is_lost: bool = False  # no process holds its state, for certain: only fresh processes may start over
    reason: str = "no generation was formed yet"
    ranks: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ranks", {member.worker: member.rank for member in self.members})

    @property
    def is_open(self) -> bool:
        return self.number > 0 and not self.is_closed


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    """One worker is ready for the next generation."""

    since: float
    settled: int
    step: int
    max_workers: int | None = None
    unreachable: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """One worker wants to leave, with the steps it has committed."""

    generation: int
    step: int
    reason: str
    is_asked: bool = False  # it would have continued


@dataclass(kw_only=True, slots=True)
class Sign:
    """One worker's last signs of life and progress. Changes with every call, so it lives beside the roster."""

    alive_at: float
    told_at: float  # when the worker or its agent last confirmed what follows
    step: int = 0
    phase: str = OUTSIDE
    phase_since: float = 0.0
    longest_step_s: float = 0.0
    longest_wait_s: float = 0.0
    state_bytes: int = 0
    generation: int = 0  # the one that the worker itself named last
    placed: int = 0  # the latest generation that it was placed in, as far as it was informed …
    num_held: int = 0  # … and its watches that are held for long
    is_vouched: bool = False  # its agent reports all this, so the worker itself need not


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSign:
    """An agent's last sign of life, and of its workers' progress; lives beside the roster too."""

    alive_at: float
    silent_since: float = 0.0
    is_cut: bool = False  # its connection was closed from its side, and not opened again


@dataclass(frozen=True, kw_only=True, slots=True)
class Roster:
    """Everything that is decided from. Changed only by the functions of `changes`."""

    job: str
    name: str
    policy: Policy
    config: Mapping[str, Any] = field(default_factory=dict)  # what the job was started with, for people
    workers: Mapping[str, Worker] = field(default_factory=dict)
    generation: Generation = field(default_factory=Generation)
    previous: Generation = field(default_factory=Generation)  # as it was closed
    attempt: Attempt = field(default_factory=Attempt)
    num_restarts: int = 0
    nodes: Mapping[str, Node] = field(default_factory=dict)
    nodes_at: float = 0.0  # when a node last came or went
    attempt_at: float = 0.0  # when the latest attempt began
    is_stopped: bool = False
    is_finished: bool = False
    reason: str = ""  # of the end
    # --- said again after a restart ---
    arrivals: Mapping[str, Arrival] = field(default_factory=dict)
    wishes: Mapping[str, Wish] = field(default_factory=dict)
    recalled: Mapping[str, float] = field(default_factory=dict)  # leavers that are needed again, and since when
    lost_at: Mapping[str, float] = field(default_factory=dict)
    formed_at: float = 0.0
    closed_at: float = 0.0
    num_announced: int = 0
    reserved: Mapping[tuple[str, str], str] = field(default_factory=dict)  # (agent, request) → worker

    @property
    def is_over(self) -> bool:
        return self.is_stopped or self.is_finished

    def worker(self, name: str) -> Worker:
        try:
            return self.workers[name]
        except KeyError:
            raise Refused(f"job {self.job} has no worker {name}", status=UNKNOWN, code="worker-unknown") from None

    def is_member(self, name: str) -> bool:
        """Whether this very process is in the latest generation, open or closed."""
        generation = self.generation
        return name in generation.ranks and self.workers[name].announced_in < generation.number

    def is_alive(self, name: str) -> bool:
        return self.workers[name].status == ALIVE

    @property
    def is_regrouping(self) -> bool:
        """Whether a worker of the latest attempt has announced itself: then generations are formed."""
        return any(each.incarnation for each in self.workers.values() if each.attempt == self.attempt.number)


def has_same_facts(before: Roster, after: Roster) -> bool:
    """Whether nothing that must be kept differs: cheap, since changes replace what they change and nothing else."""
    return (
        before.workers is after.workers
        and before.generation is after.generation
        and before.attempt is after.attempt
        and before.num_restarts == after.num_restarts
        and before.is_stopped == after.is_stopped
        and before.is_finished == after.is_finished
    )


def by_seniority(roster: Roster, names: Iterable[str]) -> list[str]:
    workers = roster.workers
    return sorted(names, key=lambda name: workers[name].seniority)


def listed(names: Iterable[str], limit: int = 5) -> str:
    """Names for a sentence: "w0, w1 and 7 more"."""
    names = list(names)
    if len(names) <= limit:
        return ", ".join(names) or "no one"
    return f"{', '.join(names[:limit])} and {len(names) - limit} more"


def num_newcomers(roster: Roster) -> int:
    """How many stand ready and would be let in if the open generation stopped at its next step boundary.

    A worker that was left out because others cannot reach it does not count: it would be left out at every step."""
    generation = roster.generation
    if not generation.is_open or roster.is_over:
        return 0
    waiting = [arrival for name, arrival in roster.arrivals.items() if name not in generation.left_out]
    limits = [roster.policy.max_workers, generation.max_workers, *(arrival.max_workers for arrival in waiting)]
    room = min((limit for limit in limits if limit is not None), default=len(roster.workers))
    return max(0, min(len(waiting), room - len(generation.members)))
