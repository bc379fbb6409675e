"""A snapshot of the code that trained: one zip file, named for its content, that all its checkpoints refer to.

What is left out is decided as for the code of a job; hidden files are left out besides. Runs without torch."""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from everstep.checkpoint import strict_json
from everstep.errors import UsageError
from everstep.storage.code_files import IGNORE_FILE, find_code

FOLDER = "code"
MOST_BYTES = 64 << 20

_ALWAYS = (".*", "*.egg-info/", "node_modules/", "runs/", "venv/")
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeSnapshot:
    sha256: str
    num_files: int
    archive: bytes = field(repr=False)
    secret: tuple[str, ...] = ()  # files that were left out because they are usually secret

    @property
    def name(self) -> str:
        return f"{FOLDER}/{self.sha256[:16]}.zip"

    @property
    def record(self) -> dict[str, Any]:
        return {"sha256": self.sha256, "files": self.num_files, "archive": self.name}


def take_snapshot(folder: str | os.PathLike[str]) -> CodeSnapshot:
    """The same files give the same snapshot, whatever their times and owners."""
    root = Path(folder)
    if not root.is_dir():
        raise UsageError(f"code={str(root)!r} is no folder", hint="give the folder that holds your training code")
    found = find_code(root, also_ignored=_ALWAYS)
    digest, buffer, count, total = hashlib.sha256(), io.BytesIO(), 0, 0
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in (each for each in found.taken if (root / each).is_file() and not (root / each).is_symlink()):
            content = (root / name).read_bytes()
            total += len(content)
            if total > MOST_BYTES:
                raise UsageError(
                    f"the code in {root} has more than {MOST_BYTES >> 20} MB, counted up to {name}",
                    hint=f"name what is no code in {root / IGNORE_FILE}",
                )
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
            count += 1
    return CodeSnapshot(sha256=digest.hexdigest(), num_files=count, archive=buffer.getvalue(), secret=found.secret)


def archive_name(record: Any, where: str) -> str:
    """The name of the archive that a manifest's record of code refers to. Anybody may have written the record."""
    sha256 = strict_json.field(record, "sha256", str, where)
    name: str = strict_json.field(record, "archive", str, where)
    if not re.fullmatch("[0-9a-f]{64}", sha256) or name != f"{FOLDER}/{sha256[:16]}.zip":
        strict_json.broken(
            where, f"{strict_json.shown(name)} is no archive of code with the checksum {strict_json.shown(sha256)}"
        )
    return name


def unpack(archive: bytes, folder: Path, *, sha256: str, where: str) -> None:
    """Write the files of a snapshot into an empty folder, private to this user.

    Anybody may have written the archive: what leads out of the folder, is no plain file, or is not what was taken is
    CheckpointBroken, and nothing of an archive is believed but what is read."""
    digest, total = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            for entry in files.infolist():
                _check_entry(entry, where)
                with files.open(entry) as file:
                    content = file.read(MOST_BYTES - total + 1)
                total += len(content)
                if total > MOST_BYTES:
                    strict_json.broken(where, f"more than {MOST_BYTES >> 20} MB, counted up to {entry.filename}")
                digest.update(f"{entry.filename}\0{len(content)}\0".encode() + content)
                _write_new(folder / entry.filename, content, where)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:  # by zipfile
        strict_json.broken(where, f"no archive that can be read: {error}")
    if digest.hexdigest() != sha256:
        strict_json.broken(where, f"its files have the checksum {digest.hexdigest()[:16]}, expected {sha256[:16]}")


def _check_entry(entry: zipfile.ZipInfo, where: str) -> None:
    parts = PurePosixPath(entry.filename).parts
    is_inside = bool(parts) and "/".join(parts) == entry.filename and not {"..", "/"} & set(parts)
    if not is_inside or "\\" in entry.filename or "\0" in entry.orig_filename:
        strict_json.broken(where, f"{strict_json.shown(entry.filename)} is no name of a file inside the folder")
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        strict_json.broken(where, f"{strict_json.shown(entry.filename)} is no plain file")


def _write_new(path: Path, content: bytes, where: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        strict_json.broken(where, f"{path.name} is in it twice")
    with open(descriptor, "wb") as file:
        file.write(content)
