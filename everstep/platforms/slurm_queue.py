"""Slurm's answers about jobs, in common terms. Uses only what all versions have: squeue and sacct with named columns;
their JSON changes from release to release. Pure except for `look`."""

from __future__ import annotations

import getpass
from collections.abc import Sequence

from everstep.errors import EverstepError
from everstep.platforms.base import State
from everstep.platforms.batch_queue import Queued, ask

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


def look(names: Sequence[str], ids: Sequence[str], *, main: str) -> list[Queued]:
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
