"""PBS (OpenPBS, PBS Pro): one job for all nodes, and all files in a folder that all nodes see.

It has the size that it was started with: it goes on without nodes that are lost, and gets no new ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from everstep import env
from everstep.errors import PermanentError, UsageError
from everstep.job_file.platform_options import Pbs
from everstep.job_file.schema import Job
from everstep.platforms import inside_allocation
from everstep.platforms.base import JobStatus, LogLine, Rendering, Say, State, Submitted, Ticket
from everstep.platforms.cluster_folder import ClusterFolder, Queued, await_gone
from everstep.platforms.job_records import JobRecord
from everstep.platforms.native_command import ask
from everstep.platforms.pbs_script import JOB, NODE, job_script, node_script
from everstep.platforms.secrets import refuse_foreign

_CANCEL_S = 120.0  # more than the server's kill delay, of 10 s
_STATES: dict[str, State] = {
    **dict.fromkeys("QHWT", "pending"),
    **dict.fromkeys("REB", "running"),
    **dict.fromkeys("SU", "suspended"),
    **dict.fromkeys("FXM", "failed"),  # over; how it went, the job's own folder knows
}


class PbsPlatform:
    name = "pbs"
    ships_code = True

    def detect(self) -> str | None:
        return None if shutil.which("qsub") else "there is no qsub; use a login node of the cluster"

    def render(self, job: Job, ticket: Ticket) -> Rendering:
        refuse_foreign(job.secrets, platform=self.name)
        text = "\n".join(
            f"# --- {ticket.folder / name}\n{script}" for name, script in _scripts(job, ticket, _options(job)).items()
        )
        notes = [f"{name}: not used on pbs" for name in ("image", "volumes", "labels") if getattr(job, name)]
        if job.nodes.min != job.nodes.max:
            notes.append(f"nodes: PBS gives all {job.nodes.max} or none; below {job.nodes.min} the job waits")
        return Rendering(text=text, notes=tuple(notes))

    def submit(self, job: Job, ticket: Ticket, secrets: Mapping[str, str], say: Say) -> Submitted:
        options = _options(job)
        if options.mode == "allocation" and not env.pbs_job():
            raise UsageError(
                "mode: allocation, but this is none", hint="`qsub -I -l select=2:ncpus=4` first, or mode: single"
            )
        ClusterFolder(ticket.folder).fill(ticket, secrets, _scripts(job, ticket, options))
        if options.mode == "allocation":
            say(f"{ticket.id} runs inside {env.pbs_job()}; logs in {ticket.folder}")
            return inside_allocation.start(ticket, ticket.folder / JOB, job.checkpoint.grace)
        try:
            hint = "see platform.pbs in the job file, and `qstat -Q`"
            native = ask(["qsub", str(ticket.folder / JOB)], hint=hint).strip().splitlines()[-1]
        except BaseException:
            shutil.rmtree(ticket.folder, ignore_errors=True)
            raise
        say(f"{ticket.id} is in the queue as {native}; logs in {ticket.folder}")
        return Submitted(job_id=native, runs=(("job", native),), work_dir=str(ticket.folder))

    def status(self, record: JobRecord) -> JobStatus:
        folder = ClusterFolder(Path(record.folder))
        if inside_allocation.is_inside(record):
            return inside_allocation.status(record, folder)
        return folder.status(lambda: _look(record), main="job")

    def logs(self, record: JobRecord, *, follow: bool) -> Iterator[LogLine]:
        return ClusterFolder(Path(record.folder)).follow(
            is_over=lambda: self.status(record).is_over, is_there=lambda: _is_there(record), follows=follow
        )

    def scale(self, record: JobRecord, num_nodes: int, say: Say) -> None:
        raise UsageError(
            "a PBS job has the size that it was started with",
            hint="cancel it and submit it with other `nodes`: it goes on from its checkpoint",
        )

    def cancel(self, record: JobRecord, say: Say) -> None:
        folder = ClusterFolder(Path(record.folder))
        if not self.status(record).is_over:
            folder.mark_cancelled()
        if inside_allocation.is_inside(record):
            inside_allocation.cancel(record, say)
            return
        if any(each.is_live for each in _look(record)):
            ask(["qdel", record.job_id])
        await_gone(lambda: _look(record), by="qdel", within_s=_CANCEL_S)

    @contextmanager
    def coordinator(self, record: JobRecord) -> Iterator[tuple[str, str] | None]:
        found = ClusterFolder(Path(record.folder)).coordinator()
        yield found if self.status(record).state == "running" else None


def parse_qstat(text: str) -> list[Queued]:
    """`qstat -f -F json`. Versions differ in which keys there are; none is counted on but the state."""
    jobs: dict[str, dict[str, Any]] = json.loads(text).get("Jobs", {})
    return [_queued(job_id, job) for job_id, job in jobs.items()]


def _queued(job_id: str, job: Mapping[str, Any]) -> Queued:
    native = str(job.get("job_state", "?"))
    code = job.get("Exit_status")
    return Queued(
        id=job_id,
        name="job",
        state="succeeded" if native == "F" and code == 0 else _STATES.get(native, "unknown"),
        native=native,
        where=", ".join(dict.fromkeys(part.split("/")[0] for part in str(job.get("exec_host", "")).split("+") if part)),
        reason=f"exit code {code}" if code is not None else str(job.get("comment", "")),
    )


def _look(record: JobRecord) -> list[Queued]:
    """Nothing, where the server keeps no history and has forgotten it."""
    try:
        return parse_qstat(ask(["qstat", "-x", "-f", "-F", "json", record.job_id]))
    except UsageError as error:
        if "unknown job" not in error.message.lower():
            raise
        return []
    except ValueError as error:
        raise PermanentError(f"qstat -F json of {record.job_id}: {error}") from None


def _is_there(record: JobRecord) -> bool:
    if inside_allocation.is_inside(record):
        return inside_allocation.is_alive(record)
    return any(each.is_live for each in _look(record))


def _options(job: Job) -> Pbs:
    return job.platform.pbs or Pbs()


def _scripts(job: Job, ticket: Ticket, options: Pbs) -> dict[str, str]:
    return {JOB: job_script(job, ticket, options), NODE: node_script(job, ticket)}
