"""A job's folder on a file system that all nodes of a cluster see: its code, token and secrets, where its coordinator
is, what became of it, and all logs.

Only its owner can read it. For clusters with a queue: Slurm and PBS."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from everstep import env, private_file
from everstep.job.order import Order, order_of
from everstep.job.schema import Job
from everstep.platforms.base import OVER, JobStatus, NodeStatus, State, Ticket
from everstep.platforms.follow import LogFile
from everstep.tokens import new_tokens

JOB_LOG = "job.log"
_ASK_S = 5.0
_LAST_ASK_S = 0.5  # after its last word …
_LAST_LINES_S = 10.0  # … until its nodes have ended: what they wrote may take a moment to get here
_QUEUE_S = 30 * 86_400.0  # a node may stand in the queue for long: others wait


def order_for_queue(job: Job, ticket: Ticket) -> Order:
    """The queue keeps the time, and nodes come when it lets them."""
    order = order_of(
        job,
        ticket.id,
        code="" if ticket.code is None else ticket.code.sha256,
        code_from="" if ticket.code is None else str(ticket.folder),
        workdir=str(ticket.workdir),
    )
    return replace(order, time_limit_s=None, policy={"join_s": _QUEUE_S, **order.policy})


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
        try:
            told = json.loads((self.path / "status.json").read_text())
            return told["state"], told["reason"]
        except FileNotFoundError:
            return "unknown", "its coordinator was not started yet"
        except ValueError:  # a script's last word is no whole file at once, and none on a full disk
            return "unknown", "its last word cannot be read"

    def ended_by(self, is_over: Callable[[], bool], is_there: Callable[[], bool]) -> Callable[[], bool]:
        """Whether the job is over and has written all its lines. `is_there`: something of it still runs. The queue is
        asked now and then only: many may be following their jobs."""
        asked_at, told_at, answer = float("-inf"), float("inf"), False

        def has_ended() -> bool:
            nonlocal asked_at, told_at, answer
            now, is_told = time.monotonic(), self.told()[0] in OVER
            told_at = min(told_at, now) if is_told else told_at
            if now >= asked_at + (_LAST_ASK_S if is_told else _ASK_S):
                asked_at, answer = now, not is_there() if is_told else is_over()
            return answer or now > told_at + _LAST_LINES_S

        return has_ended

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


def decide_status(told: tuple[State, str], jobs: list[Queued], *, main: str, is_cancelled: bool) -> JobStatus:
    """From what the coordinator said last, and what the queue knows of its jobs; `main` has the coordinator's name.
    The queue forgets what is over, and the coordinator may have had no time for a last word."""
    live = [each for each in jobs if each.state in ("pending", "running", "suspended")]
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
