"""The jobs that this user has submitted: a small private file for each, found by any of its ids."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from everstep import env
from everstep.errors import UsageError
from everstep.storage import private_file

log = logging.getLogger("everstep")


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRecord:
    id: str
    name: str
    platform: str
    created_at: float
    folder: str
    job: Mapping[str, Any]  # the job file in its native form, secrets masked
    job_id: str = ""  # the platform's own id
    work_dir: str = ""
    runs: tuple[tuple[str, str], ...] = ()
    natives: Mapping[str, Any] = field(default_factory=dict)
    min_nodes: int = 1
    max_nodes: int = 1
    end: tuple[str, str] | None = None  # state and reason, once it is over

    @property
    def ids(self) -> tuple[str, ...]:
        return (self.id, self.job_id, *(native for _, native in self.runs))

    @property
    def age_s(self) -> float:
        return max(0.0, time.time() - self.created_at)


def _folder() -> Path:
    return env.home() / "submitted"  # `jobs` holds the checkpoints' index


def make_ready() -> None:
    """Before anything is submitted: a job without a record could not be canceled."""
    folder = _folder()
    try:
        private_file.write(folder / ".ready", b"")
    except OSError as error:
        raise UsageError(
            f"cannot write job records to {folder}: {error.strerror}",
            hint=f"set {env.HOME} to a folder that you can write to",
            code="job-records-not-writable",
        ) from None


def save(record: JobRecord) -> None:
    private_file.write_json(_folder() / f"{record.id}.json", asdict(record))


def load_all() -> list[JobRecord]:
    """Newest first. A damaged record is logged and skipped."""
    found = [record for path in _folder().glob("*.json") if (record := _load(path)) is not None]
    return sorted(found, key=lambda record: record.created_at, reverse=True)


def find(wanted: str) -> JobRecord:
    """By our id or a prefix of it, by one of the platform's ids, or by name. Prefers a job that is not known to be
    over; of several with that name, the newest."""
    records = load_all()
    exact = [record for record in records if wanted in record.ids]
    found = exact or [record for record in records if record.id.startswith(wanted) or record.name == wanted]
    going = [record for record in found if record.end is None]
    named = [record for record in going or found if record.name == wanted]
    if len(found) == 1 or exact or len(going) == 1 or named:
        return (exact or named or going or found)[0]
    if found:
        shown = ", ".join(record.id for record in found[:5])
        raise UsageError(
            f"{wanted} matches {len(found)} jobs: {shown}",
            hint="give more characters of the id",
            code="job-id-ambiguous",
        )
    raise UsageError(
        f"no job {wanted} was submitted by you on this machine",
        hint="`everstep list` shows your jobs",
        code="job-record-missing",
    )


def forget(record: JobRecord) -> None:
    (_folder() / f"{record.id}.json").unlink(missing_ok=True)


def _load(path: Path) -> JobRecord | None:
    try:
        told = json.loads(path.read_text())
        runs = tuple((name, native) for name, native in told["runs"])
        return JobRecord(**{**told, "runs": runs, "end": tuple(told["end"]) if told.get("end") else None})
    except (ValueError, TypeError, KeyError) as error:
        log.warning("%s is not a job record (%s); skipped. Remove the file", path, error)
        return None
