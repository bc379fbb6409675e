"""Messages between workers and the coordinator: how generations form, close and end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from everstep.wire.bounds import Amount, Count, Name, OneOf, Port, Positive
from everstep.wire.policy import Policy

COMPUTING, WAITING, OUTSIDE = "computing", "waiting", "outside"


@dataclass(frozen=True, kw_only=True, slots=True)
class Announce:
    incarnation: Name  # random, new for each process
    pid: Count
    address: Name  # where peers reach it
    store_port: Port  # its key-value store; rank 0's is used to form a group
    probe_port: Port  # accepts and closes connections, so that peers can test whether they reach it


@dataclass(frozen=True, kw_only=True, slots=True)
class Announced:
    is_newcomer: bool  # a generation exists already: start alone, join at your first step
    policy: Policy
    step: int = 0  # the newest one that members have reported
    state_bytes: int = 0  # the largest one that members have reported


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a worker is, reported by itself or by its agent, which reads the worker's progress board."""

    step: Count = 0
    # COMPUTING a micro-batch, WAITING for peers inside a step, OUTSIDE a step
    phase: Annotated[str, OneOf(COMPUTING, WAITING, OUTSIDE)] = OUTSIDE
    phase_s: Amount = 0.0  # time spent in it so far
    longest_step_s: Amount = 0.0
    longest_wait_s: Amount = 0.0
    state_bytes: Count = 0  # what a newcomer would be sent; 0: not known


@dataclass(frozen=True, kw_only=True, slots=True)
class Watch(Progress):
    """A long poll: held while nothing changed since `seen`. Also a heartbeat, unless the worker's agent vouches."""

    incarnation: Name
    generation: Count
    seen: Count
    wait_s: Amount = 0.0  # may be held this long while its agent vouches for it; otherwise for a heartbeat


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    seen: int  # send it with the next watch
    is_closed: bool  # the generation asked about is over: break the group and arrive
    reason: str
    must_probe: bool  # arrive with the list of members that cannot be reached
    newcomers: int  # the number of workers waiting to join: announce it in the next pulse
    leavers: dict[str, int]  # members that asked to leave, and after which step; a member that passes it reports so
    is_stopped: bool  # the job is over, for `reason` …
    is_finished: bool = False  # … and ended well
    generation: int = 0  # the latest


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrive:
    incarnation: Name
    generation: Count  # the last one this worker was in; 0: none
    settled: Count  # the last generation in which it held the state; 0: never
    step: Count  # committed steps
    max_workers: Positive | None  # the job's micro-batches: more members would have nothing to do
    unreachable: list[Name] = field(default_factory=list)
    wait_s: Amount = 0.0  # may be held this long while its agent vouches for it; otherwise for about a second


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
    continues: int = 0  # the leader must have settled in this generation or a later one


@dataclass(frozen=True, kw_only=True, slots=True)
class Broken:
    incarnation: Name
    generation: Count
    reason: str
    must_probe: bool = False
    is_fatal: bool = False  # the workers do not fit together: the job is stopped


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    incarnation: Name
    generation: Count
    step: Count


@dataclass(frozen=True, kw_only=True, slots=True)
class Leave:
    """A worker is released when every member asked to leave, or when the next generation, without it, has settled.

    If one of them leaves by itself the job is finished; if all were asked to (a preemption), it waits for others."""

    incarnation: Name
    generation: Count
    step: Count
    reason: str
    is_asked: bool = False  # by SIGTERM: it would have continued


@dataclass(frozen=True, kw_only=True, slots=True)
class Left:
    is_released: bool
    is_closed: bool  # its generation is over and it is needed again: arrive, serve the state, then leave again
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    worker: str
    rank: int
    address: str
    probe_port: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationView:
    generation: int
    is_closed: bool
    reason: str
    members: list[Member]
