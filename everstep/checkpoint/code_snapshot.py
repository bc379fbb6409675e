"""The code that trained, kept once beside its checkpoints: the tarball that a job of the same folder would ship.

Runs without torch."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep.checkpoint.strict_json import broken, parse, shown
from everstep.errors import CheckpointBroken, PermanentError
from everstep.storage import code_archive
from everstep.storage.base import Storage
from everstep.storage.code_archive import Code

FOLDER = "code"
MAX_BYTES = 64 << 20


def take_snapshot(folder: str | os.PathLike[str]) -> Code:
    """A link out of the folder, often to data, is left out: it must not cost the checkpoint its code. Code that was
    unpacked from an archive that is still beside it is that archive."""
    if (archived := code_archive.archive_of(Path(folder))) is not None and len(archived.data) <= MAX_BYTES:
        return archived
    return code_archive.pack(Path(folder), max_bytes=MAX_BYTES, skips_outside_links=True)


def record_of(code: Code) -> dict[str, Any]:
    """For the manifest."""
    return {"sha256": code.sha256, "files": len(code.files.taken), "archive": archive_name(code.sha256)}


def archive_name(sha256: str) -> str:
    return f"{FOLDER}/{sha256[:16]}.tar.gz"


@dataclass(frozen=True, slots=True)
class _CodeRecord:
    sha256: str
    archive: str


def restore(storage: Storage, record: Any, folder: Path) -> None:
    """Write the code of a manifest's record into an empty folder. The record is not trusted; CheckpointBroken."""
    where = f"{storage.uri}: the record of its code"
    code: _CodeRecord = parse(_CodeRecord, record, where)
    sha256, name = code.sha256, code.archive
    if not re.fullmatch("[0-9a-f]{64}", sha256) or name != archive_name(sha256):
        broken(where, f"expected a code archive with the checksum {shown(sha256)}, found {shown(name)}")
    where = f"{storage.uri}/{name}"
    try:
        code_archive.extract(storage.read(name), sha256, folder, max_bytes=MAX_BYTES)
    except FileNotFoundError:
        raise CheckpointBroken(
            f"{where} is missing: the checkpoint's code is lost",
            hint="its state can still be loaded",
            code="checkpoint-code-missing",
        ) from None
    except PermanentError as error:
        broken(where, error.message)
