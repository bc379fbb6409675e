"""What every platform offers, in common terms; and the platform of a name, imported on first use.

Two phases: `render` is pure and returns a request without secrets; `submit` sends exactly that request."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from everstep.errors import UsageError

if TYPE_CHECKING:  # who only reports a status reads no job file
    from everstep.job_file.schema import Job
    from everstep.job_file.secret import Secret
    from everstep.storage.code_archive import Code
    from everstep.storage.shared_folder import SharedFolder

State = Literal["pending", "running", "suspended", "succeeded", "failed", "canceled", "unknown"]
OVER: tuple[State, ...] = ("succeeded", "failed", "canceled")
Say = Callable[[str], None]
_CLASSES = {
    "local": ("everstep.platforms.local", "LocalPlatform"),
    "compose": ("everstep.platforms.compose", "ComposePlatform"),
    "kubernetes": ("everstep.platforms.kubernetes.platform", "KubernetesPlatform"),
    "slurm": ("everstep.platforms.slurm", "SlurmPlatform"),
    "pbs": ("everstep.platforms.pbs", "PbsPlatform"),
    "oci": ("everstep.platforms.oci.platform", "OciPlatform"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticket:
    """Decided about a job before it is rendered."""

    id: str  # ours; the coordinator uses it too
    folder: Path  # of this job on the submitting machine: <workdir>/runs/<id>; made private on submission
    workdir: Path  # the code's folder, absolute
    code: Code | None = None  # packed, where the platform ships it (`ships_code`)


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmitRequest:
    """A job in the platform's own terms. A dry run prints `text`; `submit` sends the objects, files and commands that
    the text shows. Secrets, and ids that the platform assigns, are filled in on the way."""

    job: Job
    ticket: Ticket
    text: str  # YAML or a script, ready for the platform's own tools
    objects: Sequence[Mapping[str, Any]] = ()  # bodies of API calls
    files: Mapping[str, str] = field(default_factory=dict)  # written to the job's folder
    commands: Sequence[Sequence[str]] = ()  # run in this order
    notes: tuple[str, ...] = ()  # for people: what was relaxed, left out, or cannot be done there


@dataclass(frozen=True, kw_only=True, slots=True)
class Submitted:
    job_id: str  # the platform's own
    runs: tuple[tuple[str, str], ...]  # name and native id of each node's part, the main one first
    work_dir: str
    natives: Mapping[str, Any] = field(default_factory=dict)  # what the platform must remember


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRecord:
    """What this user's machine remembers of a submitted job."""

    id: str
    name: str
    platform: str
    created_at: float
    folder: str
    job: Mapping[str, Any]  # the job file in its native form, secrets masked
    job_id: str = ""  # the platform's own id
    work_dir: str = ""
    runs: tuple[tuple[str, str], ...] = ()
    natives: Mapping[str, Any] = field(default_factory=dict)
    min_nodes: int = 1
    max_nodes: int = 1
    end: tuple[str, str] | None = None  # state and reason, once it is over

    @property
    def ids(self) -> tuple[str, ...]:
        return (self.id, self.job_id, *(native for _, native in self.runs))

    @property
    def age_s(self) -> float:
        return max(0.0, time.time() - self.created_at)


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
        """Why the platform cannot be used from here, with a remedy; None if it can."""

    def render(self, job: Job, ticket: Ticket) -> SubmitRequest:
        """Pure. Needs no credentials, SDK or cluster."""

    def submit(self, request: SubmitRequest, secrets: Mapping[str, str], say: Say) -> Submitted:
        """Send the request, with the values of its secrets. If any part fails, nothing is left behind."""

    def status(self, record: JobRecord) -> JobStatus: ...

    def logs(self, record: JobRecord, *, follow: bool) -> Iterator[LogLine]:
        """From the beginning; with `follow`, until the job is over."""

    def scale(self, record: JobRecord, num_nodes: int, say: Say) -> None: ...

    def cancel(self, record: JobRecord, say: Say) -> None:
        """Return once no part of the job is running. If the job is over, clean up what is left."""

    def coordinator(self, record: JobRecord) -> AbstractContextManager[tuple[str, str] | None]:
        """URL and token of the job's coordinator while the context is open; None if unreachable from here."""

    def record_folder(self, record: JobRecord) -> SharedFolder | None:
        """Where the coordinator leaves the record of a job without checkpoints that this machine can read; None: in
        the job's own folder."""


def platform_of(name: str) -> Platform:
    from everstep.job_file.platform_options import check_platform

    check_platform(name)
    module, kind = _CLASSES[name]
    return cast(Platform, getattr(import_module(module), kind)())


def refuse_foreign(secrets: Mapping[str, Secret], *, platform: str, kinds: tuple[str, ...] = ()) -> None:
    """`kinds`: those that this platform resolves, besides values, env and file."""
    for name, secret in secrets.items():
        if secret.kind not in ("value", "env", "file", *kinds):
            message = f"secrets.{name}: {secret.kind}: is not supported on {platform}"
            raise UsageError(message, hint="use env:NAME or file:PATH", code="secret-kind-unsupported")
