"""Messages between agents and the coordinator: reports, orders, and worker ids."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerState:
    """What an agent sees of one of its workers from outside."""

    worker: str
    is_running: bool  # False: stopped (SIGSTOP, debugger); a running process is alive even if its threads are busy
    step: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitness:
    """What a node's check found before the start. None: not measured."""

    gflops: float | None = None  # of its slowest device
    mb_per_s: float | None = None  # of its best way to another node
    failure: str = ""  # why it is no use at all


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentReport:
    """POST …/agents/{agent}/report: heartbeat and long-poll in one; held until there are orders, at most wait_s."""

    incarnation: str
    node: str
    workers: list[WorkerState]
    wait_s: float = 1.0
    num_workers: int = 0  # how many it would start; 0: it takes part in no attempt
    address: str = ""  # where other nodes reach it …
    probe_port: int = 0  # … and can try whether they do
    node_rank: int = -1  # wished by the user; -1: in order of coming
    free_port: int = 0  # rank 0 of the next attempt could listen here
    unreachable: list[str] = field(default_factory=list)  # agents of the attempt that it cannot reach
    silent_s: float = 0.0  # since any of its workers printed or did anything
    peers_seen: int = 0  # the number of the peers that it was told last
    fitness: Fitness | None = None  # None: it was not checked


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentLeave:
    """POST …/agents/{agent}/leave: it ends in good order, with all its workers."""

    incarnation: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class KillOrder:
    worker: str
    reason: str
    wants_stacks: bool = False  # take stack traces first: it is alive but not getting on


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
    wants_stacks: bool = False  # … after showing where they are: they hang
    start: list[AttemptOrder] = field(default_factory=list)  # this node's part of it, if it has one
    past: list[str] = field(default_factory=list)  # its workers of attempts that are over, as far as they may still be
    is_regrouping: bool = False  # the workers form generations: only the dead are replaced
    why: str = ""  # why the attempt ended, or why this node has no part in it
    peers_seen: int = 0  # the number of the attempt's peers; 0: it has no part …
    peers: list[Peer] = field(default_factory=list)  # … and they themselves, unless the report named that number


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotRequest:
    """POST …/workers: reserve a worker id. The same request id gets the same worker id."""

    agent: str
    request: str
    replaces: str = ""  # a worker that ended: counts as a restart, unless the coordinator had it ended


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    worker: str  # "w0", "w1", …: never given twice in a job; empty: no restart is left
    num_restarts: int = 0  # of the whole job so far
    is_restart: bool = False  # it counts as one


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerExit:
    """POST …/workers/{worker}/exited, by its agent: the process is gone for certain."""

    exit_code: int  # negative: ended by that signal
    step: int = 0
    micro_batch: int = -1  # the micro-batch it was computing; -1: none
    was_asked: bool = False  # by its agent: it would have gone on
