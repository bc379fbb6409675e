"""Nodes as containers of this machine's docker engine, by Docker Compose: a service for each node and the coordinator.

The job's folder is on this machine and mounted: token and secrets as private files, the store, each node's logs. The
code travels as a tarball. A stopped node leaves in good order; `scale` restarts one that died."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from everstep import env
from everstep.errors import UsageError
from everstep.job_file.schema import Job
from everstep.job_file.tree import dump
from everstep.platforms import compose_file as written
from everstep.platforms import docker, status_file
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
from everstep.platforms.docker import Container, Look, Project
from everstep.storage import private_file
from everstep.wire.tokens import new_tokens, only_for_workers

_UP_S = 600.0  # an image may have to be pulled
_SHORT_S = 60.0
_LAST_WORD_S = 45.0  # nodes end before the coordinator reports the outcome
_FILE = "docker-compose.yaml"
_STATES: dict[str, State] = {
    "created": "pending",
    "restarting": "pending",
    "running": "running",
    "paused": "suspended",
    "removing": "canceled",
}


class ComposePlatform:
    name = "compose"
    ships_code = True

    def detect(self) -> str | None:
        return docker.problem()

    def render(self, job: Job, ticket: Ticket) -> SubmitRequest:
        refuse_foreign(job.secrets, platform=self.name)
        user = written.User(uid=os.getuid(), gid=os.getgid())
        file = written.compose_file(job, ticket, user)
        text = dump(file)
        return SubmitRequest(
            job=job, ticket=ticket, text=text, objects=[file], files={_FILE: text}, notes=written.notes_on(job)
        )

    def submit(self, request: SubmitRequest, secrets: Mapping[str, str], say: Say) -> Submitted:
        job, ticket = request.job, request.ticket
        project = Project(name=written.project_name(job, ticket), file=ticket.folder / _FILE)
        if found := project.containers():
            raise UsageError(
                f"the project {project.name} has {len(found)} containers already, such as {found[0].name}",
                hint="cancel that job, or choose another platform.compose.project",
                code="compose-project-exists",
            )
        try:
            _write_files(request, secrets)
            say(f"starting {job.nodes.max} nodes and the coordinator by {project.file}")
            project.run("up", "--detach", timeout_s=_UP_S)
            containers = {each.service: each for each in project.containers()}
        except BaseException:
            project.try_to("down", "--volumes", "--remove-orphans", "--timeout", "0", timeout_s=_SHORT_S)
            shutil.rmtree(ticket.folder, ignore_errors=True)
            raise
        names = [written.node_name(number) for number in range(job.nodes.max)]
        return Submitted(
            job_id=project.name,
            runs=tuple((name, containers[name].id[:12]) for name in names),
            work_dir=str(ticket.folder),
            natives={"project": project.name, "file": str(project.file), "grace_s": job.checkpoint.grace},
        )

    def status(self, record: JobRecord) -> JobStatus:
        return _status(record, _project(record).containers())

    def logs(self, record: JobRecord, *, follow: bool) -> Iterator[LogLine]:
        def look() -> Look:
            containers = _project(record).containers()
            return Look(containers=containers, is_over=_status(record, containers).is_over)

        return docker.logs(look, follow=follow)

    def scale(self, record: JobRecord, num_nodes: int, say: Say) -> None:
        """The first nodes stay; those that ended are started again."""
        names = [written.node_name(number) for number in range(record.max_nodes)]
        wanted, spare = names[:num_nodes], names[num_nodes:]
        running = {each.service for each in _project(record).containers() if not each.is_over}
        if leaving := [name for name in spare if name in running]:
            say(f"{', '.join(leaving)} may leave")
            _project(record).run("stop", *leaving, timeout_s=record.natives["grace_s"] + _SHORT_S)
        if coming := [name for name in wanted if name not in running]:
            say(f"starting {', '.join(coming)}")
            _project(record).run("up", "--detach", "--no-recreate", "--no-deps", *coming, timeout_s=_UP_S)

    def cancel(self, record: JobRecord, say: Say) -> None:
        """The coordinator first: it stops the job and notifies the nodes."""
        project, patience_s = _project(record), record.natives["grace_s"] + 2 * _SHORT_S
        if any(not each.is_over for each in project.containers() if each.service == written.COORDINATOR):
            project.run("stop", written.COORDINATOR, timeout_s=patience_s)
        project.run("down", "--volumes", "--remove-orphans", timeout_s=patience_s)
        if (state := _told(Path(record.folder))[0]) not in OVER:  # its coordinator ended before it could report
            status_file.write(Path(record.folder), "canceled", f"canceled while {state}")
        for name in (written.SECRETS, written.WORKER_TOKEN, "token"):
            (Path(record.folder) / name).unlink(missing_ok=True)

    @contextmanager
    def coordinator(self, record: JobRecord) -> Iterator[tuple[str, str] | None]:
        token = Path(record.folder) / "token"
        found = [each for each in _project(record).containers() if each.service == written.COORDINATOR]
        port = found[0].ports.get(f"{written.PORT}/tcp") if found else None
        if port is None or not token.exists():
            yield None
        else:
            yield f"http://127.0.0.1:{port}", env.read_token(token)

    def record_folder(self, record: JobRecord) -> None:
        return None  # it is in the job's folder


def _write_files(request: SubmitRequest, secrets: Mapping[str, str]) -> None:
    job, ticket = request.job, request.ticket
    folder, tokens = private_file.make_folder(ticket.folder), new_tokens()
    private_file.write(folder / "token", tokens.encode())
    private_file.write(folder / written.WORKER_TOKEN, only_for_workers(tokens).encode() + b"\n")
    for name, text in request.files.items():
        private_file.write(folder / name, text.encode())
    if job.secrets:
        private_file.write_json(folder / written.SECRETS, dict(secrets))
    if ticket.code is not None:
        private_file.write(folder / ticket.code.file_name, ticket.code.data)
    for number in range(job.nodes.max):
        private_file.make_folder(folder / written.node_name(number))


def _project(record: JobRecord) -> Project:
    return Project(name=record.natives["project"], file=Path(record.natives["file"]))


def _status(record: JobRecord, containers: list[Container]) -> JobStatus:
    state, reason = _told(Path(record.folder))
    nodes = tuple(map(_node_status, _nodes(containers)))
    if state in OVER:
        return JobStatus(state=state, reason=reason, nodes=nodes)
    coordinator = next((each for each in containers if each.service == written.COORDINATOR), None)
    if coordinator is None:
        return JobStatus(state="unknown", reason="it has no containers", nodes=nodes)
    if coordinator.is_over:
        return JobStatus(state="failed", reason=f"its coordinator has ended: {coordinator.reason}", nodes=nodes)
    if ended := all_ended(_nodes(containers), now=time.time()):
        return JobStatus(state="failed", reason=ended, nodes=nodes)
    return JobStatus(state="running" if state == "running" else "pending", reason=reason, nodes=nodes)


def _nodes(containers: list[Container]) -> list[Container]:
    nodes = [each for each in containers if each.service.startswith("node-")]
    return sorted(nodes, key=lambda each: int(each.service.partition("-")[2]))


def _node_status(node: Container) -> NodeStatus:
    state = _STATES.get(node.state, "succeeded" if node.exit_code == 0 else "failed")
    return NodeStatus(name=node.service, state=state, where=node.name, reason=node.reason)


def all_ended(nodes: list[Container], *, now: float) -> str:
    """Why the job cannot continue, if so: no node is restarted automatically. A node lost on the way does not count if
    the others have just finished the job."""
    failed = [each for each in nodes if each.is_over and each.exit_code != 0]
    if not failed or not all(each.is_over and now > each.ended_at + _LAST_WORD_S for each in nodes):
        return ""
    return f"all {len(nodes)} nodes have ended, {failed[0].service} with {failed[0].reason}: see `everstep logs`"


def _told(folder: Path) -> tuple[State, str]:
    return status_file.read(folder) or ("pending", "the coordinator is not up yet")
