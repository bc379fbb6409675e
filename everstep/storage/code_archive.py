"""The code of a job or of a checkpoint as one tarball, named for its content: packed, fetched and unpacked here alone.

The same files give the same bytes. Nothing outside the folder is packed. Unpacking writes nothing outside its
folder, even from a hostile tarball."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from everstep.errors import PermanentError, UsageError
from everstep.storage import private_file
from everstep.storage.code_files import IGNORE_FILE, CodeFiles, find_code
from everstep.storage.shared_folder import SharedFolder

MAX_BYTES = 1 << 30
LARGE_BYTES = 100 << 20
_READ_BYTES = 1 << 20


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


def pack(
    folder: Path,
    *,
    ignore_file: str = IGNORE_FILE,
    private: Collection[Path] = (),
    max_bytes: int = MAX_BYTES,
    skips_outside_links: bool = False,
) -> Code:
    """Files in `private` hold secrets and stay here. A link out of the folder is an error, unless it is skipped."""
    if not folder.is_dir():
        raise UsageError(
            f"not a folder: {folder}", hint="give the folder that holds the training code", code="code-folder-missing"
        )
    kept = {path.resolve() for path in private}
    found = find_code(folder, ignore_file=ignore_file)
    taken = [name for name in found.taken if (folder / name).resolve() not in kept]
    if skips_outside_links:
        taken = [name for name in taken if not (folder / name).is_symlink() or _stays_inside(folder, folder / name)]
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, compresslevel=6) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in (folder / name for name in taken):
            info = _info(tar, folder, path)
            if tar.offset + info.size > max_bytes:
                raise UsageError(
                    f"the code in {folder} is larger than {max_bytes >> 20} MiB, counted up to {info.name}",
                    hint=f"list data and results in {folder / ignore_file}, as in a .gitignore",
                    code="code-too-large",
                )
            if info.isreg():
                with path.open("rb") as file:
                    tar.addfile(info, file)
            else:
                tar.addfile(info)
    data = buffer.getvalue()
    return Code(sha256=hashlib.sha256(data).hexdigest(), data=data, files=replace(found, taken=tuple(taken)))


def read_from(folder: str, sha256: str) -> bytes:
    """The tarball, from a path or any URI that fsspec knows."""
    data = SharedFolder(uri=folder).read(file_name(sha256))
    if data is None:
        raise PermanentError(
            f"the job's code is not at {folder.rstrip('/')}/{file_name(sha256)}",
            hint="can this node see the folder?",
            code="code-archive-missing",
        )
    return data


def unpacked(sha256: str, into: Path) -> Path | None:
    """The folder that it was unpacked to before, if it was."""
    folder = into / f"code-{sha256[:16]}"
    return folder if folder.is_dir() else None


def unpack(data: bytes, sha256: str, into: Path) -> Path:
    """Return the folder below `into` that holds the code; one that exists already is used as it is."""
    if (there := unpacked(sha256, into)) is not None:
        return there
    _check_sum(data, sha256)
    target = into / f"code-{sha256[:16]}"
    aside = Path(tempfile.mkdtemp(prefix=".code-", dir=private_file.make_folder(into)))
    try:
        _extract(data, aside, MAX_BYTES)
        os.rename(aside, target)
    except OSError:
        if not target.is_dir():  # another node that shares the folder was first
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def extract(data: bytes, sha256: str, folder: Path, *, max_bytes: int = MAX_BYTES) -> None:
    """Write the files into an empty folder. PermanentError if the tarball is damaged, too large or leads outside."""
    _check_sum(data, sha256)
    _extract(data, folder, max_bytes)


def _extract(data: bytes, folder: Path, max_bytes: int) -> None:
    try:
        _check_size(data, max_bytes)
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
            _check_names(tar.getmembers())
            tar.extractall(folder, filter="data")
    except (tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise PermanentError(f"the code archive cannot be unpacked: {error}", code="code-archive-broken") from None


def _check_sum(data: bytes, sha256: str) -> None:
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise PermanentError(
            f"the code archive has the checksum {found[:16]} ({len(data):,} bytes), expected {sha256[:16]}",
            code="code-archive-changed",
        )


def _check_size(data: bytes, max_bytes: int) -> None:
    """Before tarfile reads it: a small archive can claim headers larger than the memory."""
    size = 0
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        while chunk := file.read(_READ_BYTES):
            size += len(chunk)
            if size > max_bytes + tarfile.RECORDSIZE:
                raise PermanentError(
                    f"the code archive is larger than {max_bytes >> 20} MiB unpacked", code="code-archive-too-large"
                )


def _check_names(members: Sequence[tarfile.TarInfo]) -> None:
    """Refuse what `pack` never makes. tarfile's own filter has had holes, all of them with links."""
    links = {each.name for each in members if each.issym()}
    seen: set[str] = set()
    for each in members:
        parents = {str(parent) for parent in PurePosixPath(each.name).parents}
        target = (
            os.path.normpath(os.path.join(os.path.dirname(each.name), each.linkname)) if each.issym() else each.name
        )
        problem = ""
        if each.name in seen:
            problem = "is in it twice"
        elif not (each.isreg() or each.isdir() or each.issym()):
            problem = "is not a file, folder or symbolic link"
        elif ".." in PurePosixPath(each.name).parts or os.path.isabs(each.name) or "\\" in each.name or parents & links:
            problem = "is not a name inside the folder"
        elif os.path.isabs(target) or target.split("/")[0] == "..":
            problem = "links to a place outside the folder"
        if problem:
            raise PermanentError(
                f"the code archive cannot be unpacked: {each.name[:80]!r} {problem}", code="code-archive-hostile"
            )
        seen.add(each.name)


def _info(tar: tarfile.TarFile, folder: Path, path: Path) -> tarfile.TarInfo:
    info = tar.gettarinfo(path, arcname=path.relative_to(folder).as_posix())
    if info.issym():
        info.linkname = _link_target(folder, path)
    if info.islnk():  # one of two names of the same file: each is a file of its own here
        info.type, info.size, info.linkname = tarfile.REGTYPE, path.stat().st_size, ""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = 0
    info.mode = 0o755 if info.mode & 0o100 or info.isdir() else 0o644
    return info


def _link_target(folder: Path, link: Path) -> str:
    """The target as seen from the link: the folder is elsewhere on a node."""
    given = os.readlink(link)
    if not _stays_inside(folder, link):
        raise UsageError(
            f"{link} leads out of the folder, to {given}",
            hint=f"copy what it points to, or list it in {IGNORE_FILE}",
            code="code-link-leads-outside",
        )
    return os.path.relpath((link.parent / given).resolve(), link.parent.resolve()) if os.path.isabs(given) else given


def _stays_inside(folder: Path, link: Path) -> bool:
    return (link.parent / os.readlink(link)).resolve().is_relative_to(folder.resolve())
