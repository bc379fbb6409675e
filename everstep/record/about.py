"""record.json: what a job was, how it ended, and which files hold its record. Written last: a folder with it is whole.

The same in the folder of a run or a submitted job, which holds the coordinator's own files, and in a copy beside the
checkpoints. Holds no secret: of the job's environment, only the names. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from everstep.errors import UsageError
from everstep.record.log_place import log_path
from everstep.wire import valid_texts

FORMAT = 1
ABOUT = "record.json"
STORE, METRICS = "coordinator.db", "coordinator.db.record"
LOGS = log_path(Path(STORE)).name
FILES = (STORE, METRICS, LOGS)
SUCCEEDED, FAILED, CANCELED = "succeeded", "failed", "canceled"

_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class CopiedFile:
    size_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordAbout:
    job: str
    name: str = ""
    state: str = ""  # succeeded, failed, canceled; empty: the job's coordinator was killed, and wrote no end
    reason: str = ""
    began_at: float = 0.0  # Unix; 0: unknown
    ended_at: float = 0.0
    version: str = ""  # of Everstep
    configuration: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: tuple[Mapping[str, Any], ...] = ()  # as `everstep checkpoint list --json` shows them
    view: Mapping[str, Any] = field(default_factory=dict)  # the last JobView, with all workers and nodes
    files: Mapping[str, CopiedFile] = field(default_factory=dict)  # of a copy; empty in the job's own folder

    def to_json(self) -> bytes:
        told = valid_texts({"format": FORMAT, **asdict(self)})
        return json.dumps(told, indent=1, ensure_ascii=False).encode() + b"\n"


def parse_about(data: bytes, where: str) -> RecordAbout:
    """UsageError if it is not one, or of a newer version. Unknown keys are left for the versions that know them."""
    try:
        told = json.loads(data)
        number = told["format"]
        if number != FORMAT:
            raise UsageError(
                f"{where} has format {number}; this version of everstep knows {FORMAT}",
                hint="use the version of everstep that wrote it",
                code="record-format-unknown",
            )
        files = {name: CopiedFile(**each) for name, each in told.get("files", {}).items()}
        for name, each in files.items():
            if name not in FILES or not isinstance(each.size_bytes, int) or not _SHA256.fullmatch(each.sha256):
                raise ValueError(f"not a file of a record: {name!r}")
        known = {each.name for each in fields(RecordAbout)}
        given = {name: value for name, value in told.items() if name in known}
        return RecordAbout(**{**given, "files": files, "checkpoints": tuple(told.get("checkpoints", ()))})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        hint = f"pass a folder with a {ABOUT} that Everstep wrote"
        raise UsageError(f"{where} cannot be read: {error}", hint=hint, code="record-unreadable") from None
