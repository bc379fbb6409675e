"""Messages about the page: codes that open it, sessions, the list of jobs, and the marks of a job's band of workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from everstep.wire.bounds import MAX_TEXT, Bounds, Name, OneOf
from everstep.wire.metrics import Value
from everstep.wire.tokens import READ_ONLY, USER

WAITING, RUNNING, REGROUPING, FINISHED, STOPPED = "waiting", "running", "regrouping", "finished", "stopped"


@dataclass(frozen=True, kw_only=True, slots=True)
class PageCodeRequest:
    role: Annotated[str, OneOf(READ_ONLY, USER)] = READ_ONLY  # of the session that it opens


@dataclass(frozen=True, kw_only=True, slots=True)
class PageCode:
    """For an address: URL/#code=CODE."""

    code: str
    expires_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionRequest:
    """One of the two."""

    code: Name = ""
    token: Annotated[str, Bounds(max_length=MAX_TEXT)] = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionView:
    role: str
    expires_at: float
    person: str = ""  # whose token opened it; "": a token without a name


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSummary:
    """A row of the list of jobs."""

    job: str
    name: str
    state: str  # waiting, running, regrouping, finished, stopped
    reason: str  # the coordinator's sentence
    created_at: float  # 0: not known
    ended_at: float | None = None
    num_workers: int = 0  # of the latest generation or attempt
    step: int = 0
    generation: int = 0
    num_deaths: int = 0
    num_restarts: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class JobList:
    jobs: list[JobSummary]
    num_found: int  # that match
    num_jobs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointView:
    uuid: str
    step: int
    time: float
    details: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobAbout:
    """What the job was started with, and its newest checkpoints."""

    summary: JobSummary
    policy: dict[str, Any]
    config: dict[str, Any]
    checkpoints: list[CheckpointView] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedValue:
    name: str
    last: Value
    last_step: int
    least: float | None
    most: float | None
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedJob:
    summary: JobSummary
    policy: dict[str, Any]
    config: dict[str, Any]
    values: list[ComparedValue]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobComparison:
    jobs: list[ComparedJob]
    unknown: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """Something that happened to a job's workers."""

    number: int  # from 1, in the order of happening
    time: float  # of day
    step: int  # that was committed then
    kind: str  # created, formed, closed, died, joined, left, leads, restarted, finished, stopped
    generation: int = 0
    worker: str = ""
    rank: int = -1  # -1: none
    reason: str = ""
    size: int = 0  # of a generation that is formed …
    joined: list[str] = field(default_factory=list)  # … who the one before did not have …
    parted: list[str] = field(default_factory=list)  # … and who has left since that one


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    marks: list[Mark]
    last: int  # pass it as `after` for later ones
