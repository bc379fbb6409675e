"""What every platform offers, and the words that all of them say it in.

Two phases: `render` is pure and gives the native objects as text, with no secret in it; `submit` sends them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from everstep.job_file.schema import Job
from everstep.platforms.job_records import JobRecord
from everstep.storage.code_archive import Code

State = Literal["pending", "running", "suspended", "succeeded", "failed", "cancelled", "unknown"]
OVER: tuple[State, ...] = ("succeeded", "failed", "cancelled")
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticket:
    """What is decided about a job before it is rendered."""

    id: str  # ours: also the coordinator's name of it
    folder: Path  # of this job on the submitting machine: <workdir>/runs/<id>; made private when it is submitted
    workdir: Path  # the code's folder, absolute
    code: Code | None = None  # packed, where the platform ships it (`ships_code`)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendering:
    """The native objects. `text` is what a dry run prints: YAML or a script, ready for the platform's own tools."""

    text: str
    objects: Sequence[Mapping[str, Any]] = ()  # the same as values, for those that are sent by an API
    notes: tuple[str, ...] = ()  # for people: what was relaxed, left out, or cannot be done there


@dataclass(frozen=True, kw_only=True, slots=True)
class Submitted:
    job_id: str  # the platform's own
    runs: tuple[tuple[str, str], ...]  # name and native id of each node's part, the main one first
    work_dir: str
    natives: Mapping[str, Any] = field(default_factory=dict)  # what the platform must remember of it


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeStatus:
    name: str
    state: State
    where: str = ""
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStatus:
    state: State
    reason: str
    nodes: tuple[NodeStatus, ...] = ()

    @property
    def is_over(self) -> bool:
        return self.state in OVER


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLine:
    node: str
    text: str


class Platform(Protocol):
    name: str
    ships_code: bool  # whether the code travels as a tarball

    def detect(self) -> str | None:
        """Why it cannot be used from here, with the way out; None if it can."""

    def render(self, job: Job, ticket: Ticket) -> Rendering:
        """Pure. Needs no credentials, SDK or cluster."""

    def submit(self, job: Job, ticket: Ticket, secrets: Mapping[str, str], say: Say) -> Submitted:
        """Send what `render` gives, with the secrets' values where they belong. All of it, or nothing is left."""

    def status(self, record: JobRecord) -> JobStatus: ...

    def logs(self, record: JobRecord, *, follow: bool) -> Iterator[LogLine]:
        """From the beginning; with `follow`, until the job is over."""

    def scale(self, record: JobRecord, num_nodes: int, say: Say) -> None: ...

    def cancel(self, record: JobRecord, say: Say) -> None:
        """Returns when nothing of it runs any more. A job that is over: clean up what is left."""

    def coordinator(self, record: JobRecord) -> AbstractContextManager[tuple[str, str] | None]:
        """URL and token of the job's coordinator, for as long as it is open; None if it cannot be reached from here."""
