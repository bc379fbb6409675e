"""PBS (OpenPBS, PBS Pro): one job for all nodes, and all files in a folder that all nodes see.

The job keeps its initial size: it continues without lost nodes and gets no new ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from everstep import env
from everstep.errors import PermanentError, UsageError
from everstep.job_file.platform_options import Pbs
from everstep.job_file.schema import Job
from everstep.platforms.base import JobRecord, Say, State, SubmitRequest, Ticket
from everstep.platforms.batch_queue import BatchScripts, Queued, QueuePlatform, Runs, ask
from everstep.platforms.pbs_script import JOB, NODE, job_script, node_script

_STATES: dict[str, State] = {
    **dict.fromkeys("QHWT", "pending"),
    **dict.fromkeys("REB", "running"),
    **dict.fromkeys("SU", "suspended"),
    **dict.fromkeys("FXM", "failed"),  # over; the job's own folder has the outcome
}


class PbsPlatform(QueuePlatform):
    name = "pbs"
    submit_program, cancel_program = "qsub", "qdel"
    cancel_s = 120.0  # more than the server's kill delay of 10 s
    allocation_hint = "`qsub -I -l select=2:ncpus=4`"

    def batch(self, job: Job, ticket: Ticket) -> BatchScripts:
        options = _options(job)
        program = "bash" if options.mode == "allocation" else "qsub"
        return BatchScripts(
            scripts={JOB: job_script(job, ticket, options), NODE: node_script(job, ticket)},
            commands=[[program, str(ticket.folder / JOB)]],
        )

    def show(self, batch: BatchScripts, ticket: Ticket) -> str:
        return "\n".join(f"# --- {ticket.folder / name}\n{script}" for name, script in batch.scripts.items())

    def notes(self, job: Job) -> list[str]:
        notes = super().notes(job)
        if job.nodes.min != job.nodes.max:
            notes.append(
                f"nodes: PBS allocates all {job.nodes.max} or none; with fewer than {job.nodes.min} the job waits"
            )
        return notes

    def mode(self, job: Job) -> str:
        return _options(job).mode

    def allocation(self) -> str:
        return env.pbs_job()

    def enqueue(self, request: SubmitRequest) -> Runs:
        hint = "see platform.pbs in the job file, and `qstat -Q`"
        return (("job", ask(request.commands[0], hint=hint).strip().splitlines()[-1]),)

    def look(self, record: JobRecord) -> list[Queued]:
        """Empty if the server keeps no history and has forgotten the job."""
        try:
            return parse_qstat(ask(["qstat", "-x", "-f", "-F", "json", record.job_id]))
        except UsageError as error:
            if "unknown job" not in error.message.lower():
                raise
            return []
        except ValueError as error:
            raise PermanentError(f"qstat -F json of {record.job_id}: {error}", code="qstat-unreadable") from None

    def end(self, record: JobRecord) -> None:
        if any(each.is_live for each in self.look(record)):
            ask(["qdel", record.job_id])

    def scale(self, record: JobRecord, num_nodes: int, say: Say) -> None:
        hint = "cancel it and submit it with other `nodes`: it continues from its checkpoint"
        raise UsageError("a PBS job keeps its initial size", hint=hint, code="pbs-cannot-scale")


def parse_qstat(text: str) -> list[Queued]:
    """`qstat -f -F json`. Keys differ between versions; only the state is required."""
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


def _options(job: Job) -> Pbs:
    return job.platform.pbs or Pbs()
