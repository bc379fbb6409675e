"""Messages between workers and the coordinator: how generations form, close and end."""

from __future__ import annotations

from dataclasses import dataclass, field

from everstep.wire.policy import Policy


@dataclass(frozen=True, kw_only=True, slots=True)
class Announce:
    """POST …/workers/{worker}/announce: the process is up and will form or join a generation."""

    incarnation: str  # random, new for each process
    pid: int
    address: str  # where peers reach it
    store_port: int  # its key-value store; rank 0's is used to form a group
    probe_port: int  # accepts and closes connections, so that peers can tell whether they reach it


@dataclass(frozen=True, kw_only=True, slots=True)
class Announced:
    is_newcomer: bool  # a generation exists already: start alone, join at your first step
    policy: Policy


COMPUTING, WAITING, OUTSIDE = "computing", "waiting", "outside"


@dataclass(frozen=True, kw_only=True, slots=True)
class Watch:
    """POST …/workers/{worker}/watch: heartbeat and long-poll in one; held while nothing changed since `seen`."""

    incarnation: str
    generation: int
    seen: int
    step: int
    phase: str  # COMPUTING a micro-batch, WAITING for peers inside a step, OUTSIDE a step
    phase_s: float  # how long already
    longest_step_s: float
    longest_wait_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    seen: int  # to be sent with the next watch
    is_closed: bool  # the generation asked about is over: break the group and arrive
    reason: str
    must_probe: bool  # arrive with the list of members that cannot be reached
    newcomers: int  # so many wait to be let in: say so in the next pulse
    leavers: dict[str, int]  # members that asked to leave, and after which step; whoever goes on past it says so
    is_stopped: bool  # the job is over, for `reason` …
    is_finished: bool = False  # … and ended well
    generation: int = 0  # the latest


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrive:
    """POST …/workers/{worker}/arrive: ready for the next generation. Held until it is formed, else answered `wait`."""

    incarnation: str
    generation: int  # the last one this worker was in; 0: none
    settled: int  # the last generation in which it held the state; 0: never
    step: int  # committed steps
    max_workers: int | None  # the job's micro-batches: more members would have nothing to do
    unreachable: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrived:
    is_formed: bool
    is_stopped: bool  # the job is over, for `reason` …
    reason: str
    is_finished: bool = False  # … and ended well
    generation: int = 0
    rank: int = 0
    size: int = 0
    store_address: str = ""  # rank 0's
    store_port: int = 0
    continues: int = 0  # whoever leads must have settled in this generation or a later one


@dataclass(frozen=True, kw_only=True, slots=True)
class Broken:
    """POST …/workers/{worker}/broken: a collective or the forming of the group failed; the generation is closed."""

    incarnation: str
    generation: int
    reason: str
    must_probe: bool = False
    is_fatal: bool = False  # the workers do not fit together: the job is stopped


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    """POST …/workers/{worker}/settled: it holds the state of this generation."""

    incarnation: str
    generation: int
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Leave:
    """POST …/workers/{worker}/leave: wants to end after its committed step. Held until released, else asked again.

    Released when every member asked to leave, or when the next generation, without it, has settled. If one of them
    leaves by itself the job is finished; if all were asked to (a preemption), it waits for other workers."""

    incarnation: str
    generation: int
    step: int
    reason: str
    is_asked: bool = False  # by SIGTERM: it would have gone on


@dataclass(frozen=True, kw_only=True, slots=True)
class Left:
    is_released: bool
    is_closed: bool  # its generation is over and it is needed once more: arrive, serve the state, then leave again
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    worker: str
    rank: int
    address: str
    probe_port: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationView:
    """GET …/generations/{generation}."""

    generation: int
    is_closed: bool
    reason: str
    members: list[Member]
