"""A job's folder on a file system that all nodes of a cluster see: code, token, secrets, the coordinator's address,
the outcome, and all logs.

Only its owner can read it. For clusters with a batch scheduler: Slurm and PBS."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from everstep import env
from everstep.errors import UsageError
from everstep.job_file.order import NodeOrder, order_of
from everstep.job_file.schema import Job
from everstep.platforms import status_file
from everstep.platforms.base import State, Ticket
from everstep.platforms.follow_logs import LogFile
from everstep.storage import private_file
from everstep.wire.tokens import new_tokens

JOB_LOG = "job.log"
_QUEUE_S = 30 * 86_400.0  # a node may wait in the queue for weeks; the others wait for it


def order_for_queue(job: Job, ticket: Ticket) -> NodeOrder:
    """The scheduler keeps the time limit, and decides when nodes start."""
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
    """The name is among the options of a batch script, which are read line by line."""
    if any(unicodedata.category(letter) == "Cc" for letter in str(folder)):
        raise UsageError(
            f"{str(folder)!r} has a line break or control character in its name",
            hint="rename the folder, or set workdir to another one",
            code="folder-name-control-character",
        )


@dataclass(frozen=True, slots=True)
class ClusterFolder:
    path: Path

    def fill(self, ticket: Ticket, secrets: Mapping[str, str], scripts: Mapping[str, str]) -> None:
        """Write all that the job's processes need before they start."""
        folder = private_file.make_folder(self.path)
        private_file.write(folder / "token", new_tokens().encode())
        if secrets:
            private_file.write_json(folder / "secrets.json", dict(secrets))
        if ticket.code is not None:
            private_file.write(folder / ticket.code.file_name, ticket.code.data)
        for name, text in scripts.items():
            private_file.write(folder / name, text.encode())

    @property
    def is_canceled(self) -> bool:
        return (self.path / "canceled").exists()

    def mark_canceled(self) -> None:
        """Before the job is ended, so that no part of it is requeued."""
        private_file.write(self.path / "canceled", b"")

    def told(self) -> tuple[State, str]:
        """The last report of the coordinator or of the script around it."""
        return status_file.read(self.path) or ("unknown", "its coordinator has not started yet")

    def logs(self) -> list[LogFile]:
        nodes = sorted(self.path.glob("node-*.log"), key=lambda path: (len(path.name), path.name))
        main = [LogFile("job", self.path / JOB_LOG)] if (self.path / JOB_LOG).exists() else []
        return [*main, *(LogFile(path.stem, path) for path in nodes)]

    def coordinator(self) -> tuple[str, str] | None:
        """Its last known URL, and its token. It may not be reachable from here."""
        try:
            return (self.path / "coordinator.url").read_text().strip(), env.read_token(self.path / "token")
        except FileNotFoundError:
            return None
