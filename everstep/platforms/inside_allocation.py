"""A job inside an existing allocation (salloc, qsub -I): its batch script, run here in the background.

It ends with the allocation; canceling it keeps the allocation."""

from __future__ import annotations

from collections.abc import Sequence

from everstep import env
from everstep.platforms import background_process
from everstep.platforms.base import OVER, JobRecord, JobStatus, Say, Submitted, Ticket
from everstep.platforms.cluster_folder import JOB_LOG, ClusterFolder


def start(ticket: Ticket, command: Sequence[str], grace_s: float) -> Submitted:
    pid = background_process.start(command, env.everything(), ticket.folder / JOB_LOG)
    natives = {"mode": "allocation", **background_process.describe(pid, grace_s)}
    return Submitted(job_id=ticket.id, runs=(("job", ticket.id),), work_dir=str(ticket.folder), natives=natives)


def is_inside(record: JobRecord) -> bool:
    return record.natives.get("mode") == "allocation"


def is_alive(record: JobRecord) -> bool:
    return background_process.is_alive(record.natives)


def status(record: JobRecord, folder: ClusterFolder) -> JobStatus:
    is_alive = background_process.is_alive(record.natives)  # first: it reports its end before it ends
    state, reason = folder.told()
    if state not in OVER and (host := background_process.other_host(record.natives)):
        return JobStatus(state="unknown", reason=f"{reason}; it runs on {host}; ask there")
    if state in OVER or is_alive:
        return JobStatus(state="running" if state in ("unknown", "pending") else state, reason=reason)
    if folder.is_canceled:
        return JobStatus(state="canceled", reason="canceled")
    return JobStatus(state="failed", reason=f"its script (pid {record.natives['pid']}) is gone; last report: {reason}")


def cancel(record: JobRecord, say: Say) -> None:
    background_process.end(record.natives, say)
