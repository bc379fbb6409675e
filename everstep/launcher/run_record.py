"""run.json: what a run on this node is, in its own folder, for `everstep status` and for the same job's next start.

Names the process that runs it, its coordinator, and how it ended. The record of a killed run has no end: the next start
of the same job continues in its folder, with the same store, token and port."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from everstep.process import ENDED, process_state, started_at
from everstep.storage import private_file

RUNNING, FINISHED, FAILED, INTERRUPTED = "running", "finished", "failed", "interrupted"
LEFT = "left"  # interrupted, but other nodes hold the state and wait for the coordinator to come back
NAME = "run.json"
_OURS = ("pid_started_at", "is_host", "token_file", "error")  # not shown

log = logging.getLogger("everstep")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    job: str
    url: str = ""  # of the coordinator, once it answers
    token_file: str = ""  # for that coordinator
    is_host: bool = False  # the coordinator is ours, and its store in this folder
    pid: int = 0
    pid_started_at: str = ""
    state: str = RUNNING
    reason: str = ""
    error: str = ""  # of the worker that failed first: its last words, in one line
    exit_code: int | None = None
    num_steps: int = 0
    elapsed_s: float = 0.0

    @property
    def is_alive(self) -> bool:
        is_same = bool(self.pid_started_at) and started_at(self.pid) == self.pid_started_at
        return is_same and process_state(self.pid) != ENDED

    @property
    def shown_state(self) -> str:
        return "killed" if self.state == RUNNING and not self.is_alive else self.state

    def as_json(self) -> dict[str, Any]:
        told = {name: value for name, value in asdict(self).items() if name not in _OURS}
        return told | {"state": self.shown_state}


def begin(directory: Path, job: str, *, is_host: bool) -> None:
    """Unless another living process has the folder, such as the run that an agent here has joined."""
    pid, found = os.getpid(), read(directory)
    if found is not None and found.state == RUNNING and found.is_alive and found.pid != pid:
        return
    write(directory, RunRecord(job=job, is_host=is_host, pid=pid, pid_started_at=started_at(pid)))


def update(directory: Path, **changes: Any) -> None:
    """Only by the process that began it. A run does not fail because this cannot be written."""
    if (record := read(directory)) is not None and record.pid == os.getpid():
        try:
            write(directory, replace(record, **changes))
        except OSError as error:  # a full disk, or one that became read-only
            log.warning("%s cannot be written: %s", directory / NAME, error)


def write(directory: Path, record: RunRecord) -> None:
    private_file.write_json(directory / NAME, asdict(record))


def read(directory: Path) -> RunRecord | None:
    try:
        return RunRecord(**json.loads((directory / NAME).read_text()))
    except (OSError, ValueError, TypeError):  # none, or one of another version
        return None


def newest_first(log_dir: Path, job: str | None = None) -> Iterator[tuple[Path, RunRecord]]:
    """All runs of this folder, or those of a job; a job is also known by its folder's name."""
    paths = sorted(log_dir.glob(f"*/{NAME}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in paths:
        record = read(path.parent)
        if record is not None and job in (None, record.job, path.parent.name):
            yield path.parent, record


def unfinished(log_dir: Path, job: str) -> Path | None:
    """The folder of a run that hosted this job and was killed, or left others behind: the job is not over."""
    for directory, record in newest_first(log_dir, job):
        if record.is_host:
            is_left = record.state in (RUNNING, LEFT) and not record.is_alive
            return directory if is_left and record.job == job else None
    return None
