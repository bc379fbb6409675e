"""A job inside an allocation that exists already (salloc, qsub -I): its batch script, run here in the background.

It ends with the allocation, and is ended without it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from everstep.platforms.base import OVER, JobStatus, Say, Submitted, Ticket
from everstep.platforms.records import Record
from everstep.platforms.shared_folder import JOB_LOG, SharedFolder
from everstep.process import ENDED, process_state, start_detached, started_at, wait_for_end

_CANCEL_S = 30.0  # more than the nodes' grace


def start(ticket: Ticket, script: Path, grace_s: float) -> Submitted:
    log = os.open(ticket.folder / JOB_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        pid = start_detached(["bash", str(script)], env=os.environ, output=log, descriptors=())
    finally:
        os.close(log)
    natives = {"mode": "allocation", "pid": pid, "started": started_at(pid), "grace_s": grace_s}
    return Submitted(job_id=ticket.id, runs=(("job", ticket.id),), work_dir=str(ticket.folder), natives=natives)


def is_inside(record: Record) -> bool:
    return record.natives.get("mode") == "allocation"


def status(record: Record, folder: SharedFolder) -> JobStatus:
    state, reason = folder.told()
    if state in OVER or _is_alive(record):
        return JobStatus(state="running" if state in ("unknown", "pending") else state, reason=reason)
    if folder.is_cancelled:
        return JobStatus(state="cancelled", reason="cancelled")
    return JobStatus(state="failed", reason=f"its script (pid {record.natives['pid']}) is gone; last: {reason}")


def cancel(record: Record, say: Say) -> None:
    if not _is_alive(record):
        return
    pid, grace_s = int(record.natives["pid"]), float(record.natives["grace_s"])
    os.kill(pid, signal.SIGTERM)
    if not wait_for_end(pid, grace_s + _CANCEL_S):
        say(f"it did not end within {grace_s + _CANCEL_S:.0f} s and is killed")
        os.killpg(pid, signal.SIGKILL)


def _is_alive(record: Record) -> bool:
    """By the kernel's clock too: the number may be another's by now, also on another machine."""
    pid = int(record.natives["pid"])
    return process_state(pid) != ENDED and started_at(pid) == record.natives["started"]
