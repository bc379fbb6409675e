"""This machine: the coordinator as a process in the background, and the nodes as its children.

The code runs in place. All files are in the job's folder."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from everstep import env
from everstep.errors import PermanentError
from everstep.job_file.order import NodeOrder, order_of
from everstep.job_file.schema import Job
from everstep.job_file.tree import dump
from everstep.platforms import background_process, status_file
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
from everstep.platforms.follow_logs import LogFile, follow_files
from everstep.platforms.local_fleet import wanted_path
from everstep.process import ENDED, own_command, process_state, reap_detached
from everstep.storage import private_file
from everstep.waiting import wait_until
from everstep.wire.tokens import new_tokens

_READY_S = 120.0  # usually two; more on a busy machine


class LocalPlatform:
    name = "local"
    ships_code = False

    def detect(self) -> str | None:
        return None

    def render(self, job: Job, ticket: Ticket) -> SubmitRequest:
        refuse_foreign(job.secrets, platform=self.name)
        order = order_of(job, ticket.id, workdir=str(ticket.workdir))
        process = {
            "folder": str(ticket.folder),
            "command": own_command("coordinate", {"--folder": str(ticket.folder), "--fleet": "local"}),
            "environment": {env.ORDER: order.to_json()},
            "secrets": {name: str(secret) for name, secret in job.secrets.items()},
            "nodes": job.nodes.max,
        }
        ignored = [name for name, given in (("image", job.image), ("volumes", job.volumes)) if given]
        return SubmitRequest(
            job=job,
            ticket=ticket,
            text=dump(process),
            objects=[process],
            notes=tuple(f"{name}: not used on local" for name in ignored),
        )

    def submit(self, request: SubmitRequest, secrets: Mapping[str, str], say: Say) -> Submitted:
        (process,), ticket = request.objects, request.ticket
        folder = private_file.make_folder(ticket.folder)
        private_file.write(folder / "token", new_tokens().encode())
        if secrets:
            private_file.write_json(folder / "secrets.json", dict(secrets))
        pid = background_process.start(process["command"], {**env.everything(), **process["environment"]}, _log(folder))
        try:
            _await_ready(pid, folder)
        except BaseException:  # Ctrl-C too: no record of the process would exist
            os.kill(pid, signal.SIGKILL)
            reap_detached(pid)
            raise
        say(f"{ticket.id} runs in the background (pid {pid}); logs in {folder}")
        runs = tuple((f"node-{number}", f"{ticket.id}/node-{number}") for number in range(process["nodes"]))
        return Submitted(
            job_id=ticket.id,
            runs=runs,
            work_dir=str(folder),
            natives=background_process.describe(pid, NodeOrder.from_json(process["environment"][env.ORDER]).grace_s),
        )

    def status(self, record: JobRecord) -> JobStatus:
        is_alive = background_process.is_alive(record.natives)  # first: it reports its end before it ends
        state, reason = _told(Path(record.folder))
        if state == "running" and (host := background_process.other_host(record.natives)):
            return JobStatus(state="unknown", reason=f"{reason}; it runs on {host}; ask there")
        if state == "running" and not is_alive:
            state, reason = "failed", f"its coordinator (pid {record.natives['pid']}) is gone"
        return JobStatus(state=state, reason=reason, nodes=tuple(self._nodes(record)) if state == "running" else ())

    def logs(self, record: JobRecord, *, follow: bool) -> Iterator[LogLine]:
        folder = Path(record.folder)

        def files() -> list[LogFile]:
            nodes = sorted(folder.glob("node-*.log"), key=lambda path: int(path.stem.partition("-")[2]))
            return [LogFile("coordinator", _log(folder)), *(LogFile(path.stem, path) for path in nodes)]

        return follow_files(files, is_over=lambda: not follow or self.status(record).is_over)

    def scale(self, record: JobRecord, num_nodes: int, say: Say) -> None:
        private_file.write(wanted_path(Path(record.folder)), f"{num_nodes}\n".encode())

    def cancel(self, record: JobRecord, say: Say) -> None:
        if _told(Path(record.folder))[0] not in OVER:
            background_process.end(record.natives, say)

    @contextmanager
    def coordinator(self, record: JobRecord) -> Iterator[tuple[str, str] | None]:
        folder = Path(record.folder)
        if not background_process.is_alive(record.natives):
            yield None
        else:
            yield (folder / "coordinator.url").read_text().strip(), env.read_token(folder / "token")

    def record_folder(self, record: JobRecord) -> None:
        return None  # it is in the job's folder

    def _nodes(self, record: JobRecord) -> Iterator[NodeStatus]:
        from everstep.client.calls import Coordinator
        from everstep.errors import EverstepError

        with self.coordinator(record) as found:
            if found is None:
                return
            try:
                with Coordinator(*found, record.id) as coordinator:
                    view = coordinator.view(is_brief=True)
            except EverstepError:
                return
        for node in view.nodes:
            yield NodeStatus(
                name=node.agent,
                state="running" if node.is_present else "unknown",
                where=node.address,
                reason=node.reason,
            )


def _log(folder: Path) -> Path:
    return folder / "job.log"


def _await_ready(pid: int, folder: Path) -> None:
    ready = folder / "coordinator.url"
    wait_until(
        lambda: ready.exists() or process_state(pid) == ENDED, _READY_S, "the coordinator to start", pause_s=0.01
    )
    if not ready.exists():
        raise PermanentError(
            f"the coordinator did not start: {_log(folder).read_text()[-2000:].strip()}",
            code="coordinator-did-not-start",
        )


def _told(folder: Path) -> tuple[State, str]:
    return status_file.read(folder) or ("unknown", f"{folder} has no report of its coordinator")
