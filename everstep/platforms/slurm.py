"""Slurm: batch scripts, one agent for each node, and all files in a folder that all nodes see.

Needs nothing but Slurm's own commands, and no torch: it is made for login nodes."""

from __future__ import annotations

import getpass
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from everstep import env
from everstep.errors import UsageError
from everstep.job_file.platform_options import Slurm
from everstep.job_file.schema import Job
from everstep.platforms import inside_allocation
from everstep.platforms.base import JobStatus, LogLine, Rendering, Say, Submitted, Ticket
from everstep.platforms.cluster_folder import ClusterFolder, Queued, await_gone
from everstep.platforms.job_records import JobRecord
from everstep.platforms.native_command import ask
from everstep.platforms.secrets import refuse_foreign
from everstep.platforms.slurm_queue import look
from everstep.platforms.slurm_script import (
    COORDINATOR,
    JOB,
    NODES,
    coordinator_name,
    coordinator_script,
    node_script,
    single_script,
)
from everstep.storage import private_file

_CANCEL_S = 150.0  # more than Slurm's KillWait, of 30 s, and what it needs to clean up
_REFUSED = "see platform.slurm in the job file, and `sinfo`"


class SlurmPlatform:
    name = "slurm"
    ships_code = True

    def detect(self) -> str | None:
        return None if shutil.which("sbatch") else "there is no sbatch; use a login node of the cluster"

    def render(self, job: Job, ticket: Ticket) -> Rendering:
        refuse_foreign(job.secrets, platform=self.name)
        options = _options(job)
        if job.time_limit is not None and job.time_limit <= options.signal_lead:
            raise UsageError(
                f"time_limit: {job.time_limit:.0f} s, and its nodes leave {options.signal_lead:.0f} s before",
                hint="more time, or a smaller platform.slurm.signal_lead",
            )
        scripts = _scripts(job, ticket, options)
        text = scripts.get(JOB) or "\n".join(
            f"# --- {shlex.join(command)}\n{script}"
            for command, script in zip(_commands(job, ticket, options), scripts.values(), strict=True)
        )
        ignored = [name for name in ("image", "volumes", "labels") if getattr(job, name)]
        return Rendering(text=text, notes=tuple(f"{name}: not used on slurm" for name in ignored))

    def submit(self, job: Job, ticket: Ticket, secrets: Mapping[str, str], say: Say) -> Submitted:
        options, folder = _options(job), ClusterFolder(ticket.folder)
        if options.mode == "allocation" and not env.slurm_job():
            raise UsageError("mode: allocation, but this is none", hint="`salloc --nodes=2` first, or mode: single")
        folder.fill(ticket, secrets, _scripts(job, ticket, options))
        if options.mode == "allocation":
            say(f"{ticket.id} runs inside allocation {env.slurm_job()}; logs in {ticket.folder}")
            return inside_allocation.start(ticket, ticket.folder / JOB, job.checkpoint.grace)
        if env.slurm_job():
            say(f"platform.slurm.mode=allocation would run it inside this allocation, {env.slurm_job()}")
        try:
            runs = _submit(job, ticket, options)
        except BaseException:
            shutil.rmtree(ticket.folder, ignore_errors=True)
            raise
        say(f"{ticket.id} is in the queue as {', '.join(native for _, native in runs)}; logs in {ticket.folder}")
        return Submitted(job_id=runs[0][1], runs=runs, work_dir=str(ticket.folder), natives={"mode": options.mode})

    def status(self, record: JobRecord) -> JobStatus:
        folder = ClusterFolder(Path(record.folder))
        if inside_allocation.is_inside(record):
            return inside_allocation.status(record, folder)
        return folder.status(lambda: _look(record), main=_main(record))

    def logs(self, record: JobRecord, *, follow: bool) -> Iterator[LogLine]:
        return ClusterFolder(Path(record.folder)).follow(
            is_over=lambda: self.status(record).is_over, is_there=lambda: _is_there(record), follows=follow
        )

    def scale(self, record: JobRecord, num_nodes: int, say: Say) -> None:
        if record.natives.get("mode") != "array":
            raise UsageError(
                "a Slurm job has the size that it was started with", hint="submit it with platform.slurm.mode=array"
            )
        folder = Path(record.folder)
        present = [each for each in _nodes(record) if not (folder / "leave" / _node_name(each)).exists()]
        if len(present) < num_nodes:
            first = _next_number(folder, present)
            _sbatch(_array(folder, record.job_id, first, first + num_nodes - len(present) - 1))
        for each in sorted(present, key=_number)[num_nodes:]:
            private_file.write(folder / "leave" / _node_name(each), b"")
            gently = ["--batch", "--signal=USR2"] if each.state == "running" else []
            ask(["scancel", *gently, each.id])
            say(f"{_node_name(each)} ({each.id}) leaves")

    def cancel(self, record: JobRecord, say: Say) -> None:
        folder = ClusterFolder(Path(record.folder))
        if not self.status(record).is_over:
            folder.mark_cancelled()
        if inside_allocation.is_inside(record):
            inside_allocation.cancel(record, say)
            return
        for name in _names(record):
            ask(["scancel", f"--user={getpass.getuser()}", f"--name={name}"])
        await_gone(lambda: _look(record), by="scancel", within_s=_CANCEL_S)

    @contextmanager
    def coordinator(self, record: JobRecord) -> Iterator[tuple[str, str] | None]:
        found = ClusterFolder(Path(record.folder)).coordinator()
        yield found if self.status(record).state == "running" else None


def _is_there(record: JobRecord) -> bool:
    if inside_allocation.is_inside(record):
        return inside_allocation.is_alive(record)
    return any(each.is_live for each in _look(record))


def _options(job: Job) -> Slurm:
    return job.platform.slurm or Slurm()


def _scripts(job: Job, ticket: Ticket, options: Slurm) -> dict[str, str]:
    if options.mode == "array":
        return {COORDINATOR: coordinator_script(job, ticket, options), NODES: node_script(job, ticket, options)}
    return {JOB: single_script(job, ticket, options)}


def _commands(job: Job, ticket: Ticket, options: Slurm) -> list[list[str]]:
    if options.mode == "array":
        first = ["sbatch", "--parsable", str(ticket.folder / COORDINATOR)]
        return [first, _array(ticket.folder, "$COORDINATOR", 0, job.nodes.max - 1)]
    return [["sbatch", "--parsable", str(ticket.folder / JOB)]]


def _array(folder: Path, coordinator: str, first: int, last: int) -> list[str]:
    """Nodes with these numbers. They begin after the coordinator has: nobody pays for nodes that wait for it."""
    which = f"--array={first}-{last}"
    return ["sbatch", "--parsable", which, f"--dependency=after:{coordinator}", str(folder / NODES)]


def _submit(job: Job, ticket: Ticket, options: Slurm) -> tuple[tuple[str, str], ...]:
    main = _sbatch(_commands(job, ticket, options)[0])
    if options.mode == "single":
        return (("job", main),)
    last = job.nodes.max - 1
    try:
        nodes = _sbatch(_array(ticket.folder, main, 0, last))
    except BaseException:
        ask(["scancel", main])
        raise
    return (("coordinator", main), *((f"node-{number}", f"{nodes}_{number}") for number in range(last + 1)))


def _sbatch(command: list[str]) -> str:
    """The job's number; with several clusters, theirs is said behind it."""
    return ask(command, hint=_REFUSED).strip().splitlines()[-1].partition(";")[0]


def _names(record: JobRecord) -> list[str]:
    return [record.id, coordinator_name(record.id)] if record.natives.get("mode") == "array" else [record.id]


def _main(record: JobRecord) -> str:
    return _names(record)[-1]


def _look(record: JobRecord) -> list[Queued]:
    return look(_names(record), [record.job_id], main=_main(record))


def _nodes(record: JobRecord) -> list[Queued]:
    return [each for each in _look(record) if each.name == record.id and each.is_live]


def _number(job: Queued) -> int:
    found = re.search(r"_(\d+)$", job.id)
    return int(found[1]) if found else 0


def _node_name(job: Queued) -> str:
    return f"node-{_number(job)}"


def _next_number(folder: Path, present: list[Queued]) -> int:
    """One that no node ever had."""
    past = [*folder.glob("node-*.log"), *folder.glob("leave/node-*")]
    numbers = [int(path.stem.partition("-")[2]) for path in past] + [_number(each) for each in present]
    return max(numbers, default=-1) + 1
