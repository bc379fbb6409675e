"""A job's code as a tarball named for its content: packed where it is submitted, fetched and unpacked by each node.

The same files give the same bytes.
Nothing outside the folder is packed or written: links that point outside are refused."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

from everstep.errors import PermanentError, UsageError
from everstep.storage.code_files import IGNORE_FILE, CodeFiles, find_code

MAX_BYTES = 1 << 30
LARGE_BYTES = 100 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    sha256: str
    data: bytes = field(repr=False)
    files: CodeFiles = field(default_factory=CodeFiles)

    @property
    def file_name(self) -> str:
        return file_name(self.sha256)


def file_name(sha256: str) -> str:
    return f"code-{sha256}.tar.gz"


def pack(folder: Path, *, ignore_file: str = IGNORE_FILE, private: Collection[Path] = ()) -> Code:
    """`private`: files that hold secrets and are left out."""
    if not folder.is_dir():
        raise UsageError(
            f"workdir {folder} is not a folder",
            hint="the folder that holds the entrypoint",
            code="workdir-not-a-folder",
        )
    kept = {path.resolve() for path in private}
    found = find_code(folder, ignore_file=ignore_file)
    taken = tuple(name for name in found.taken if (folder / name).resolve() not in kept)
    buffer, num_bytes = io.BytesIO(), 0
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, compresslevel=6) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in (folder / name for name in taken):
            info = _info(tar, folder, path)
            num_bytes += info.size
            if num_bytes > MAX_BYTES:
                raise UsageError(
                    f"the code in {folder} is more than {MAX_BYTES >> 20} MiB",
                    hint=f"list data and results in {folder / ignore_file}, as in a .gitignore",
                    code="code-too-large",
                )
            if info.isreg():
                with path.open("rb") as file:
                    tar.addfile(info, file)
            else:
                tar.addfile(info)
    data = buffer.getvalue()
    return Code(sha256=hashlib.sha256(data).hexdigest(), data=data, files=replace(found, taken=taken))


def unpacked(sha256: str, into: Path) -> Path | None:
    """The folder of an earlier unpacking, if any."""
    folder = into / f"code-{sha256[:16]}"
    return folder if folder.is_dir() else None


def read_from(folder: str, sha256: str) -> bytes:
    """The tarball, from a folder of any kind that fsspec knows."""
    import fsspec

    path = f"{folder.rstrip('/')}/{file_name(sha256)}"
    try:
        with fsspec.open(path, "rb") as file:
            data: bytes = file.read()
            return data
    except FileNotFoundError:
        raise PermanentError(
            f"the job's code is not at {path}", hint="check that this node can see the folder", code="code-not-found"
        ) from None


def unpack(data: bytes, sha256: str, into: Path) -> Path:
    """The folder below `into` that holds it; an existing one is used as it is."""
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise PermanentError(
            f"received code {found[:12]} ({len(data)} bytes) instead of {sha256[:12]}", code="code-digest-mismatch"
        )
    if (there := unpacked(sha256, into)) is not None:
        return there
    target = into / f"code-{sha256[:16]}"
    into.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".code-", dir=into))
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
            tar.extractall(aside, filter="data")
        os.rename(aside, target)
    except OSError:
        if not target.is_dir():  # another node of the same folder was first
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def _info(tar: tarfile.TarFile, folder: Path, path: Path) -> tarfile.TarInfo:
    info = tar.gettarinfo(path, arcname=path.relative_to(folder).as_posix())
    if info.issym():
        info.linkname = _linked(folder, path)
    if info.islnk():  # a second name of the same file: packed as a separate file
        info.type, info.size, info.linkname = tarfile.REGTYPE, path.stat().st_size, ""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = 0
    info.mode = 0o755 if info.mode & 0o100 or info.isdir() else 0o644
    return info


def _linked(folder: Path, link: Path) -> str:
    """Its target, relative to the link: the folder is elsewhere on a node."""
    given = os.readlink(link)
    there = (link.parent / given).resolve()
    if not there.is_relative_to(folder.resolve()):
        raise UsageError(
            f"{link} points outside the folder, to {given}",
            hint="copy its target, or list it in .everstepignore",
            code="code-link-leads-out",
        )
    return os.path.relpath(there, link.parent.resolve()) if os.path.isabs(given) else given
