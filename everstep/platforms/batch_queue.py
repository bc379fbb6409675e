"""Clusters with a batch scheduler: one base for Slurm and PBS.

A job is batch scripts in a folder that all nodes see. Status, logs, cancellation and jobs inside an existing allocation
are the same everywhere; a scheduler adds its scripts and its commands. Needs no torch: it runs on login nodes."""

from __future__ import annotations

import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from everstep import env, process
from everstep.errors import EverstepError, PermanentError, UsageError
from everstep.job_file.schema import Job
from everstep.platforms import background_process
from everstep.platforms.base import (
    OVER,
    JobRecord,
    JobStatus,
    LogLine,
    NodeStatus,
    Say,
    State,
    SubmitRequest,
    Submitted,
    Ticket,
    refuse_foreign,
)
from everstep.platforms.cluster_folder import JOB_LOG, ClusterFolder
from everstep.platforms.follow_logs import follow_files
from everstep.waiting import wait_until

_LOOK_S = 0.5
_ANSWER_S = 120.0  # a busy controller is slow
Runs = tuple[tuple[str, str], ...]  # name and native id of each, the main one first


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchScripts:
    """A job as scripts, and the commands that submit them."""

    scripts: Mapping[str, str]  # by file name
    commands: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Queued:
    """One job of the scheduler, in common terms."""

    id: str
    name: str
    state: State
    native: str  # the scheduler's word for its state
    where: str = ""
    reason: str = ""

    @property
    def is_live(self) -> bool:
        return self.state in ("pending", "running", "suspended")


class QueuePlatform(ABC):
    name: str
    submit_program: str
    cancel_program: str
    cancel_s: float  # until all jobs are gone
    allocation_hint: str
    ships_code = True

    @abstractmethod
    def batch(self, job: Job, ticket: Ticket) -> BatchScripts:
        """Pure."""

    @abstractmethod
    def show(self, batch: BatchScripts, ticket: Ticket) -> str:
        """The text of a dry run."""

    @abstractmethod
    def enqueue(self, request: SubmitRequest) -> Runs:
        """Run the request's commands. If any of them fails, no job is left."""

    @abstractmethod
    def look(self, record: JobRecord) -> list[Queued]:
        """The jobs that the scheduler still knows."""

    @abstractmethod
    def end(self, record: JobRecord) -> None:
        """Ask the scheduler to end all jobs of the record."""

    @abstractmethod
    def allocation(self) -> str:
        """Id of the allocation that this process is inside of; empty: none."""

    def main(self, record: JobRecord) -> str:
        """Name of the job that runs the coordinator."""
        return "job"

    def notes(self, job: Job) -> list[str]:
        return [f"{name}: not used on {self.name}" for name in ("image", "volumes", "labels") if getattr(job, name)]

    def detect(self) -> str | None:
        has_program = shutil.which(self.submit_program) is not None
        return None if has_program else f"{self.submit_program} not found; use a login node of the cluster"

    def render(self, job: Job, ticket: Ticket) -> SubmitRequest:
        refuse_foreign(job.secrets, platform=self.name)
        batch = self.batch(job, ticket)
        return SubmitRequest(
            job=job,
            ticket=ticket,
            text=self.show(batch, ticket),
            files=batch.scripts,
            commands=batch.commands,
            notes=tuple(self.notes(job)),
        )

    def submit(self, request: SubmitRequest, secrets: Mapping[str, str], say: Say) -> Submitted:
        ticket, mode, allocation = request.ticket, self.mode(request.job), self.allocation()
        if mode == "allocation" and not allocation:
            raise UsageError(
                "mode: allocation, but this shell is not inside an allocation",
                hint=f"{self.allocation_hint} first, or mode: single",
                code="not-inside-allocation",
            )
        ClusterFolder(ticket.folder).fill(ticket, secrets, request.files)
        if mode == "allocation":
            say(f"{ticket.id} runs inside allocation {allocation}; logs in {ticket.folder}")
            return _start_inside(ticket, request.commands[0], request.job.checkpoint.grace)
        if allocation:
            say(f"platform.{self.name}.mode=allocation would run it inside this allocation, {allocation}")
        try:
            runs = self.enqueue(request)
        except BaseException:
            shutil.rmtree(ticket.folder, ignore_errors=True)
            raise
        say(f"{ticket.id} is in the queue as {', '.join(native for _, native in runs)}; logs in {ticket.folder}")
        return Submitted(job_id=runs[0][1], runs=runs, work_dir=str(ticket.folder), natives={"mode": mode})

    @abstractmethod
    def mode(self, job: Job) -> str: ...

    def status(self, record: JobRecord) -> JobStatus:
        """Asks the scheduler only if the job itself has not reported its end. A job reports its end before it ends."""
        folder = ClusterFolder(Path(record.folder))
        if _is_inside(record):
            return status_inside(record, folder)
        jobs = [] if folder.told()[0] in OVER else self.look(record)
        return decide_status(folder.told(), jobs, main=self.main(record), is_canceled=folder.is_canceled)

    def logs(self, record: JobRecord, *, follow: bool) -> Iterator[LogLine]:
        folder = ClusterFolder(Path(record.folder))
        watch = QueueWatch(
            has_said_so=lambda: folder.told()[0] in OVER,
            is_over=lambda: self.status(record).is_over,
            is_there=lambda: self._is_there(record),
        )
        return follow_files(folder.logs, is_over=lambda: not follow or watch.has_ended())

    @abstractmethod
    def scale(self, record: JobRecord, num_nodes: int, say: Say) -> None: ...

    def cancel(self, record: JobRecord, say: Say) -> None:
        if not self.status(record).is_over:
            ClusterFolder(Path(record.folder)).mark_canceled()
        if _is_inside(record):
            background_process.end(record.natives, say)
            return
        self.end(record)
        await_gone(lambda: self.look(record), by=self.cancel_program, within_s=self.cancel_s)

    @contextmanager
    def coordinator(self, record: JobRecord) -> Iterator[tuple[str, str] | None]:
        found = ClusterFolder(Path(record.folder)).coordinator()
        yield found if self.status(record).state == "running" else None

    def record_folder(self, record: JobRecord) -> None:
        return None  # it is in the job's folder

    def _is_there(self, record: JobRecord) -> bool:
        if _is_inside(record):
            return background_process.is_alive(record.natives)
        return any(each.is_live for each in self.look(record))


# --- inside an existing allocation (salloc, qsub -I): the batch script, run here in the background ------
# It ends with the allocation; canceling it keeps the allocation.


def _start_inside(ticket: Ticket, command: Sequence[str], grace_s: float) -> Submitted:
    pid = background_process.start(command, env.everything(), ticket.folder / JOB_LOG)
    natives = {"mode": "allocation", **background_process.describe(pid, grace_s)}
    return Submitted(job_id=ticket.id, runs=(("job", ticket.id),), work_dir=str(ticket.folder), natives=natives)


def _is_inside(record: JobRecord) -> bool:
    return record.natives.get("mode") == "allocation"


def status_inside(record: JobRecord, folder: ClusterFolder) -> JobStatus:
    is_alive = background_process.is_alive(record.natives)  # first: it reports its end before it ends
    state, reason = folder.told()
    if state not in OVER and (host := background_process.other_host(record.natives)):
        return JobStatus(state="unknown", reason=f"{reason}; it runs on {host}; ask there")
    if state in OVER or is_alive:
        return JobStatus(state="running" if state in ("unknown", "pending") else state, reason=reason)
    if folder.is_canceled:
        return JobStatus(state="canceled", reason="canceled")
    return JobStatus(state="failed", reason=f"its script (pid {record.natives['pid']}) is gone; last report: {reason}")


# --- the queue ------------------------------------------------------------------------------------


def ask(command: Sequence[str], *, hint: str | None = None) -> str:
    """Run one of the scheduler's commands, and return its output. `hint`: the remedy if it fails."""
    try:
        answer = process.ask(command, timeout_s=_ANSWER_S)
    except FileNotFoundError:
        raise UsageError(
            f"{command[0]} not found", hint="use a login node of the cluster", code="scheduler-not-found"
        ) from None
    except TimeoutError:
        raise PermanentError(
            f"{command[0]} did not answer within {_ANSWER_S:.0f} s", code="scheduler-timeout"
        ) from None
    if not answer.exit.is_good:
        said = (answer.errors.strip() or answer.text.strip() or str(answer.exit)).splitlines()
        raise UsageError(f"{command[0]}: {'; '.join(said[-3:])}", hint=hint, code="scheduler-refused")
    return answer.text


def await_gone(look: Callable[[], list[Queued]], *, by: str, within_s: float) -> None:
    """Wait until the scheduler has none of the jobs that `by` has ended."""
    live: list[Queued] = []

    def is_gone() -> bool:
        live[:] = [each for each in look() if each.is_live]
        return not live

    if not wait_until(is_gone, within_s, lambda: f"{live[0].id}, which is {live[0].native}, to end", pause_s=_LOOK_S):
        raise PermanentError(
            f"{live[0].id} is still {live[0].native} {within_s:.0f} s after {by}", code="batch-job-not-ended"
        )


def decide_status(told: tuple[State, str], jobs: list[Queued], *, main: str, is_canceled: bool) -> JobStatus:
    """From the coordinator's last report and the scheduler's jobs; `main` is the coordinator's job name.
    The scheduler forgets finished jobs, and a coordinator may end before it can report."""
    live = [each for each in jobs if each.is_live]
    nodes = tuple(NodeStatus(name=each.id, state=each.state, where=each.where, reason=each.native) for each in live)
    state, reason = told
    if state in OVER:
        return JobStatus(state=state, reason=reason)
    if is_canceled:
        waiting = f"; {len(live)} of its jobs are about to end" if live else ""
        return JobStatus(state="running" if live else "canceled", reason=f"canceled{waiting}", nodes=nodes)
    current = next((each for each in live if each.name == main), None)
    if current is not None:
        why = reason if current.state == "running" else f"{current.id} is {current.native}: {current.reason}"
        return JobStatus(state=current.state, reason=why, nodes=nodes)
    ended = [each for each in jobs if each.name == main]
    if not ended:
        return JobStatus(state="failed", reason=f"the queue no longer knows the job; its last report: {reason}")
    last = ended[-1]
    how = f"{last.id} is {last.native}" + (f" ({last.reason})" if last.reason else "")
    # Its exit code is the job's, and a shared file system may be slow to show what it wrote.
    return JobStatus(state=last.state if last.state in ("succeeded", "canceled") else "failed", reason=how)


class QueueWatch:
    """Whether a job is over, and has written all its lines. Asks the scheduler at intervals: many users may follow
    their jobs. Repeats failed calls for a while, because a busy scheduler often does not answer. `has_said_so`: the job
    reported its end; `is_there`: part of it still runs and may write."""

    def __init__(
        self,
        *,
        has_said_so: Callable[[], bool],
        is_over: Callable[[], bool],
        is_there: Callable[[], bool],
        every_s: float = 5.0,
        last_every_s: float = 0.5,  # after the final report …
        last_lines_s: float = 10.0,  # … for at most this long: a shared file system shows lines late
        patience_s: float = 600.0,
    ) -> None:
        self._has_said_so, self._is_over, self._is_there = has_said_so, is_over, is_there
        self._every_s, self._last_every_s = every_s, last_every_s
        self._last_lines_s, self._patience_s = last_lines_s, patience_s
        self._ask_at = self._answered_at = time.monotonic()
        self._said_at: float | None = None
        self._has_ended = False

    def has_ended(self) -> bool:
        now = time.monotonic()
        if self._said_at is None and self._has_said_so():
            self._said_at = self._ask_at = now
        if self._said_at is not None and now > self._said_at + self._last_lines_s:
            self._has_ended = True
        if not self._has_ended and now >= self._ask_at:
            self._has_ended = self._ask()
            self._ask_at = time.monotonic() + (self._every_s if self._said_at is None else self._last_every_s)
        return self._has_ended

    def _ask(self) -> bool:
        try:
            answer = self._is_over() if self._said_at is None else not self._is_there()
        except EverstepError:
            if self._said_at is None and time.monotonic() > self._answered_at + self._patience_s:
                raise
            return False
        self._answered_at = time.monotonic()
        return answer
