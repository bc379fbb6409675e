"""A job's folder on a file system that all nodes of a cluster see: its code, token and secrets, where its coordinator
is, what became of it, and all logs.

Only its owner can read it. For clusters with a queue: Slurm and PBS."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from everstep import env
from everstep.errors import PermanentError, UsageError
from everstep.job_file.order import NodeOrder, order_of
from everstep.job_file.schema import Job
from everstep.platforms import status_file
from everstep.platforms.base import OVER, JobStatus, LogLine, NodeStatus, State, Ticket
from everstep.platforms.follow_logs import LogFile, follow_files
from everstep.platforms.queue_watch import QueueWatch
from everstep.storage import private_file
from everstep.waiting import wait_until
from everstep.wire.tokens import new_tokens

JOB_LOG = "job.log"
_LOOK_S = 0.5
_QUEUE_S = 30 * 86_400.0  # a node may stand in the queue for long: others wait


def order_for_queue(job: Job, ticket: Ticket) -> NodeOrder:
    """The queue keeps the time, and nodes come when it lets them."""
    _check_name(ticket.folder)
    order = order_of(
        job,
        ticket.id,
        code="" if ticket.code is None else ticket.code.sha256,
        code_from="" if ticket.code is None else str(ticket.folder),
        workdir=str(ticket.workdir),
    )
    return replace(order, time_limit_s=None, policy={"join_s": _QUEUE_S, **order.policy})


def _check_name(folder: Path) -> None:
    """It is in the options of a batch script, which are read line by line."""
    if any(unicodedata.category(letter) == "Cc" for letter in str(folder)):
        raise UsageError(
            f"{str(folder)!r} has a line break or control character in its name",
            hint="rename the folder, or set workdir to another one",
        )


@dataclass(frozen=True, slots=True)
class ClusterFolder:
    path: Path

    def fill(self, ticket: Ticket, secrets: Mapping[str, str], scripts: Mapping[str, str]) -> None:
        """All that its processes need, before they are started."""
        folder = private_file.make_folder(self.path)
        private_file.write(folder / "token", new_tokens().encode())
        if secrets:
            private_file.write_json(folder / "secrets.json", dict(secrets))
        if ticket.code is not None:
            private_file.write(folder / ticket.code.file_name, ticket.code.data)
        for name, text in scripts.items():
            private_file.write(folder / name, text.encode())

    @property
    def is_cancelled(self) -> bool:
        return (self.path / "cancelled").exists()

    def mark_cancelled(self) -> None:
        """Before it is ended: whoever is ended then must not come back."""
        private_file.write(self.path / "cancelled", b"")

    def told(self) -> tuple[State, str]:
        """What the coordinator, or the script around it, said last."""
        return status_file.read(self.path) or ("unknown", "its coordinator was not started yet")

    def status(self, look: Look, *, main: str) -> JobStatus:
        """Asks the queue only where its jobs have not said how it went. They say their last word, and then end."""
        jobs = [] if self.told()[0] in OVER else look()
        return decide_status(self.told(), jobs, main=main, is_cancelled=self.is_cancelled)

    def follow(self, *, is_over: Callable[[], bool], is_there: Callable[[], bool], follows: bool) -> Iterator[LogLine]:
        """All lines of all logs; `follows`: until the job is over. `is_there`: something of it still runs."""
        watch = QueueWatch(has_said_so=lambda: self.told()[0] in OVER, is_over=is_over, is_there=is_there)
        return follow_files(self.logs, is_over=lambda: not follows or watch.has_ended())

    def logs(self) -> list[LogFile]:
        nodes = sorted(self.path.glob("node-*.log"), key=lambda path: (len(path.name), path.name))
        main = [LogFile("job", self.path / JOB_LOG)] if (self.path / JOB_LOG).exists() else []
        return [*main, *(LogFile(path.stem, path) for path in nodes)]

    def coordinator(self) -> tuple[str, str] | None:
        """Where it was last, and its token; whether it answers, and from here, is another question."""
        try:
            return (self.path / "coordinator.url").read_text().strip(), env.read_token(self.path / "token")
        except FileNotFoundError:
            return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Queued:
    """One job of the queue, in our words."""

    id: str
    name: str
    state: State
    native: str  # the queue's word for its state
    where: str = ""
    reason: str = ""

    @property
    def is_live(self) -> bool:
        return self.state in ("pending", "running", "suspended")


Look = Callable[[], list[Queued]]


def await_gone(look: Look, *, by: str, within_s: float) -> None:
    """Until none of its jobs is in the queue any more; `by` has ended them."""
    live: list[Queued] = []

    def is_gone() -> bool:
        live[:] = [each for each in look() if each.is_live]
        return not live

    if not wait_until(is_gone, within_s, lambda: f"{live[0].id}, which is {live[0].native}, to end", pause_s=_LOOK_S):
        raise PermanentError(f"{live[0].id} is still {live[0].native} {within_s:.0f} s after {by}")


def decide_status(told: tuple[State, str], jobs: list[Queued], *, main: str, is_cancelled: bool) -> JobStatus:
    """From what the coordinator said last, and what the queue knows of its jobs; `main` has the coordinator's name.
    The queue forgets what is over, and the coordinator may have had no time for a last word."""
    live = [each for each in jobs if each.is_live]
    nodes = tuple(NodeStatus(name=each.id, state=each.state, where=each.where, reason=each.native) for each in live)
    state, reason = told
    if state in OVER:
        return JobStatus(state=state, reason=reason)
    if is_cancelled:
        waiting = f"; {len(live)} of its jobs are about to end" if live else ""
        return JobStatus(state="running" if live else "cancelled", reason=f"cancelled{waiting}", nodes=nodes)
    current = next((each for each in live if each.name == main), None)
    if current is not None:
        why = reason if current.state == "running" else f"{current.id} is {current.native}: {current.reason}"
        return JobStatus(state=current.state, reason=why, nodes=nodes)
    ended = [each for each in jobs if each.name == main]
    if not ended:
        return JobStatus(state="failed", reason=f"the queue does not know it any more; its last word was: {reason}")
    last = ended[-1]
    how = f"{last.id} is {last.native}" + (f" ({last.reason})" if last.reason else "")
    # Its exit code is the job's, and a shared file system may be slow to show what it wrote.
    return JobStatus(state=last.state if last.state in ("succeeded", "cancelled") else "failed", reason=how)
