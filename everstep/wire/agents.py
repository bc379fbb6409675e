"""Messages between agents and the coordinator: reports, orders, and worker ids."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from everstep.wire.bounds import Amount, Bounds, Count, CountOrNone, Name, Port, Whole
from everstep.wire.membership import Progress

MAX_WORKERS_PER_NODE = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerState(Progress):
    """What an agent sees of one of its workers from outside."""

    worker: Name
    is_running: bool  # False: ended or stopped (SIGSTOP, debugger); a running one is alive even if its threads are busy
    has_progress: bool = False  # the agent can read its progress, so the worker itself need not repeat it


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitness:
    """What a node's check found before the start. None: not measured."""

    gflops: Amount | None = None  # of its slowest device
    mb_per_s: Amount | None = None  # of its best link to another node
    failure: str = ""  # why it cannot be used at all


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentReport:
    incarnation: Name
    node: Name
    workers: list[WorkerState]  # all of them, or those that changed since the report that `after` names
    number: Count = 0  # of this report
    after: Count = 0  # the last report that was answered; 0: this one lists all workers
    wait_s: Amount = 1.0  # the call may be held this long
    num_workers: Annotated[int, Bounds(ge=0, le=MAX_WORKERS_PER_NODE)] = 0  # to start; 0: takes part in no attempt
    address: Name = ""  # where other nodes reach it …
    probe_port: Port = 0  # … and can test whether they do
    node_rank: CountOrNone = -1  # requested by the user; -1: in order of arrival
    free_port: Port = 0  # rank 0 of the next attempt could listen here
    unreachable: list[Name] = field(default_factory=list)  # agents of the attempt that it cannot reach
    silent_s: Amount = 0.0  # since any of its workers printed or did anything
    peers_seen: Count = 0  # the number of the list of peers that it received last
    fitness: Fitness | None = None  # None: it was not checked


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentLeave:
    incarnation: Name
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class KillOrder:
    worker: str
    reason: str
    wants_stacks: bool = False  # take stack traces first: it is alive but makes no progress


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """Another node of the attempt."""

    agent: str
    address: str
    probe_port: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptOrder:
    """One node's part in a start of all workers together: start these, after all earlier ones have ended."""

    number: int  # of the attempt; the first is 0
    workers: list[str]  # by local rank
    node_rank: int
    num_nodes: int
    first_rank: int
    size: int
    master_address: str
    master_port: int
    num_restarts: int  # of the whole job so far
    max_restarts: int
    max_workers: int  # the most that the job may ever have
    notes: list[str] = field(default_factory=list)  # on nodes that were left out, and why


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentOrders:
    kill: list[KillOrder]
    is_ended: bool  # all workers finished, or the job was stopped
    reason: str  # why it was stopped; empty after a good end
    attempt: int = -1  # the latest; workers of earlier ones must end
    is_attempt_closed: bool = False  # its own workers must end too
    wants_stacks: bool = False  # … after their stacks were dumped: they hang
    start: list[AttemptOrder] = field(default_factory=list)  # this node's part of it, if it has one
    past: list[str] = field(default_factory=list)  # its workers of earlier attempts that may still run
    is_regrouping: bool = False  # the workers form generations: only the dead are replaced
    why: str = ""  # why the attempt ended, or why this node has no part in it
    peers_seen: int = 0  # the number of the attempt's list of peers; 0: it has no part …
    peers: list[Peer] = field(default_factory=list)  # … and the list itself, unless the report named that number
    report_s: float = 0.0  # let the next report be held this long; 0: as long as a heartbeat
    wants_all: bool = False  # the report builds on one that is not known: list all workers again


@dataclass(frozen=True, kw_only=True, slots=True)
class ReserveWorker:
    """The same request id gets the same worker id."""

    agent: Name
    request: Name
    replaces: Name = ""  # a worker that ended: counts as a restart, unless the coordinator ordered its end


@dataclass(frozen=True, kw_only=True, slots=True)
class ReservedWorker:
    worker: str  # "w0", "w1", …: never used twice in a job; empty: no restart is left
    num_restarts: int = 0  # of the whole job so far
    is_restart: bool = False  # it counts as one


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerExit:
    exit_code: Whole  # negative: ended by that signal
    step: Count = 0
    micro_batch: CountOrNone = -1  # the micro-batch it was computing; -1: none
    was_asked: bool = False  # by its agent: it would have continued
