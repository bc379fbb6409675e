"""Look into a tarball of code without unpacking it: which files it holds, and the text of one.

Reads no more than it must, and never more than `MAX_BYTES`: a small archive can claim to be huge. Knows nothing of
experiments."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from everstep.errors import PermanentError, UsageError
from everstep.storage.code_archive import MAX_BYTES


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedFile:
    name: str
    num_bytes: int
    is_link: bool = False


def list_files(archive: Path, most: int) -> tuple[list[ListedFile], int]:
    """The first files by name, and how many more there are."""
    with _reading(archive) as members:
        found = [
            ListedFile(name=each.name, num_bytes=each.size, is_link=each.issym())
            for each in members
            if each.isreg() or each.issym()
        ]
    found.sort(key=lambda each: each.name)
    return found[:most], max(0, len(found) - most)


def read_text(archive: Path, name: str, most_bytes: int) -> tuple[str, int]:
    """The text of a file, or its beginning, and how many bytes the file has. UsageError if it is not text."""
    with _told(archive), tarfile.open(archive, "r|gz") as tar:
        for each in _bounded(tar):
            if each.name == name:
                if not each.isreg():
                    raise UsageError(f"{name[:200]} is a link to {each.linkname[:200]}", code="code-file-link")
                file = tar.extractfile(each)
                assert file is not None
                return _text(file.read(most_bytes), name, is_whole=each.size <= most_bytes), each.size
    raise UsageError(f"the code has no file {name[:200]}", code="code-file-unknown")


def _text(data: bytes, name: str, *, is_whole: bool) -> str:
    if b"\0" not in data:
        for cut in range(1 if is_whole else 4):  # the end may be inside a character
            try:
                return data[: len(data) - cut].decode()
            except UnicodeDecodeError:
                continue
    raise UsageError(f"{name[:200]} is not text", code="code-file-binary")


@contextmanager
def _reading(archive: Path) -> Iterator[Iterator[tarfile.TarInfo]]:
    with _told(archive), tarfile.open(archive, "r|gz") as tar:
        yield _bounded(tar)


def _bounded(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for each in tar:
        if each.offset_data + each.size > MAX_BYTES:
            raise PermanentError(
                f"the code archive is larger than {MAX_BYTES >> 20} MiB unpacked", code="code-archive-too-large"
            )
        yield each


@contextmanager
def _told(archive: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise PermanentError(f"the code archive cannot be read: {error}", code="code-archive-broken") from None
