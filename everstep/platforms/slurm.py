"""Slurm: batch scripts, one agent for each node, and all files in a folder that all nodes see.

Needs only Slurm's own commands."""

from __future__ import annotations

import getpass
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from everstep import env
from everstep.errors import EverstepError, UsageError
from everstep.job_file.platform_options import Slurm
from everstep.job_file.schema import Job
from everstep.platforms.base import JobRecord, Say, State, SubmitRequest, Ticket
from everstep.platforms.batch_queue import BatchScripts, Queued, QueuePlatform, Runs, ask
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

_COLUMNS = "%i|%j|%T|%N|%r"  # the reason last: it may hold anything
_STATES: dict[State, tuple[str, ...]] = {
    "pending": ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"),
    "running": ("RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT"),
    "suspended": ("SUSPENDED", "STOPPED"),
    "succeeded": ("COMPLETED",),
    "canceled": ("CANCELLED", "REVOKED"),
    "failed": ("FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED"),
}  # fmt: skip
_BY_NATIVE = {native: state for state, natives in _STATES.items() for native in natives}
_COORDINATOR_JOB = "$COORDINATOR"  # its number, known once it is submitted


class SlurmPlatform(QueuePlatform):
    name = "slurm"
    submit_program, cancel_program = "sbatch", "scancel"
    cancel_s = 150.0  # more than Slurm's KillWait of 30 s, plus its cleanup
    allocation_hint = "`salloc --nodes=2`"

    def batch(self, job: Job, ticket: Ticket) -> BatchScripts:
        options = _options(job)
        if job.time_limit is not None and job.time_limit <= options.signal_lead:
            raise UsageError(
                f"time_limit: {job.time_limit:.0f} s, but nodes leave {options.signal_lead:.0f} s before it",
                hint="raise time_limit, or lower platform.slurm.signal_lead",
                code="time-limit-within-signal-lead",
            )
        if options.mode == "array":
            first = ["sbatch", "--parsable", str(ticket.folder / COORDINATOR)]
            return BatchScripts(
                scripts={
                    COORDINATOR: coordinator_script(job, ticket, options),
                    NODES: node_script(job, ticket, options),
                },
                commands=[first, _array(ticket.folder, _COORDINATOR_JOB, 0, job.nodes.max - 1)],
            )
        program = ["bash"] if options.mode == "allocation" else ["sbatch", "--parsable"]
        scripts = {JOB: single_script(job, ticket, options)}
        return BatchScripts(scripts=scripts, commands=[[*program, str(ticket.folder / JOB)]])

    def show(self, batch: BatchScripts, ticket: Ticket) -> str:
        if len(batch.scripts) == 1:
            return batch.scripts[JOB]
        both = zip(batch.commands, batch.scripts.values(), strict=True)
        return "\n".join(f"# --- {shlex.join(command)}\n{script}" for command, script in both)

    def mode(self, job: Job) -> str:
        return _options(job).mode

    def allocation(self) -> str:
        return env.value("SLURM_JOB_ID") or ""

    def main(self, record: JobRecord) -> str:
        return _names(record)[-1]

    def enqueue(self, request: SubmitRequest) -> Runs:
        main = _sbatch(request.commands[0])
        if len(request.commands) == 1:
            return (("job", main),)
        try:
            nodes = _sbatch([word.replace(_COORDINATOR_JOB, main) for word in request.commands[1]])
        except BaseException:
            ask(["scancel", main])
            raise
        numbers = range(request.job.nodes.max)
        return (("coordinator", main), *((f"node-{number}", f"{nodes}_{number}") for number in numbers))

    def look(self, record: JobRecord) -> list[Queued]:
        return _look(_names(record), [record.job_id], main=self.main(record))

    def end(self, record: JobRecord) -> None:
        for name in _names(record):
            ask(["scancel", f"--user={getpass.getuser()}", f"--name={name}"])

    def scale(self, record: JobRecord, num_nodes: int, say: Say) -> None:
        if record.natives.get("mode") != "array":
            message = "this Slurm job keeps its initial size"
            raise UsageError(message, hint="submit it with platform.slurm.mode=array", code="slurm-cannot-scale")
        folder = Path(record.folder)
        present = [each for each in self._nodes(record) if not (folder / "leave" / _node_name(each)).exists()]
        if len(present) < num_nodes:
            first = _next_number(folder, present)
            _sbatch(_array(folder, record.job_id, first, first + num_nodes - len(present) - 1))
        for each in sorted(present, key=_number)[num_nodes:]:
            private_file.write(folder / "leave" / _node_name(each), b"")
            gently = ["--batch", "--signal=USR2"] if each.state == "running" else []
            ask(["scancel", *gently, each.id])
            say(f"{_node_name(each)} ({each.id}) leaves")

    def _nodes(self, record: JobRecord) -> list[Queued]:
        return [each for each in self.look(record) if each.name == record.id and each.is_live]


def _options(job: Job) -> Slurm:
    return job.platform.slurm or Slurm()


def _array(folder: Path, coordinator: str, first: int, last: int) -> list[str]:
    """Nodes with these numbers. They start after the coordinator does: waiting nodes would cost money."""
    which = f"--array={first}-{last}"
    return ["sbatch", "--parsable", which, f"--dependency=after:{coordinator}", str(folder / NODES)]


def _sbatch(command: Sequence[str]) -> str:
    """The job's number; with several clusters, the cluster's name follows it."""
    return (
        ask(command, hint="see platform.slurm in the job file, and `sinfo`").strip().splitlines()[-1].partition(";")[0]
    )


def _names(record: JobRecord) -> list[str]:
    return [record.id, coordinator_name(record.id)] if record.natives.get("mode") == "array" else [record.id]


def _number(job: Queued) -> int:
    found = re.search(r"_(\d+)$", job.id)
    return int(found[1]) if found else 0


def _node_name(job: Queued) -> str:
    return f"node-{_number(job)}"


def _next_number(folder: Path, present: list[Queued]) -> int:
    """A number that no node has had."""
    past = [*folder.glob("node-*.log"), *folder.glob("leave/node-*")]
    numbers = [int(path.stem.partition("-")[2]) for path in past] + [_number(each) for each in present]
    return max(numbers, default=-1) + 1


# --- the queue: squeue and sacct with named columns, as all versions have them ----------------------


def state_of(native: str) -> State:
    """Also reads `CANCELLED by 1000` and `COMPLETED+`."""
    return _BY_NATIVE.get((native.split() or [""])[0].rstrip("+").upper(), "unknown")


def parse_squeue(text: str) -> list[Queued]:
    rows = [line.split("|", 4) for line in text.splitlines() if line.count("|") >= 4]
    return [_queued(*row) for row in rows]


def parse_sacct(text: str) -> list[Queued]:
    """JobID|JobName|State|NodeList|ExitCode, of whole jobs (-X)."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") >= 4]
    return [_queued(job, name, native, where, f"exit code {code}") for job, name, native, where, code, *_ in rows]


def _queued(job_id: str, name: str, native: str, where: str, reason: str) -> Queued:
    said = "" if reason.strip() == "None" else reason.strip()
    where = "" if where.startswith("None") else where.strip()
    return Queued(id=job_id, name=name.strip(), state=state_of(native), native=native, where=where, reason=said)


def _look(names: Sequence[str], ids: Sequence[str], *, main: str) -> list[Queued]:
    """Jobs with these names. If squeue has forgotten the main one, also those of the accounting, if there is one."""
    user = getpass.getuser()
    queue = ["squeue", "-h", "-r", "-t", "all", f"--user={user}", f"--name={','.join(names)}", "-o", _COLUMNS]
    found = parse_squeue(ask(queue))
    if any(each.name == main for each in found):
        return found
    columns = "JobID,JobName%200,State,NodeList,ExitCode"
    try:
        return [*parse_sacct(ask(["sacct", "-n", "-X", "-P", "-D", "-j", ",".join(ids), "-o", columns])), *found]
    except EverstepError:  # many clusters have no accounting
        return found
