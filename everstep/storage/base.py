"""Where checkpoints are kept, behind a few calls: put, read, list, delete, hide, sweep, close.

A local directory is written with plain system calls, because only they can say what is on the disk; all others are
behind fsspec. `put` returns when the bytes are durable; a name holds all of them or what it held before.
Knows nothing of checkpoints."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from everstep.errors import UsageError

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


class Readable(Protocol):
    """Names are relative, with `/`. A missing name is FileNotFoundError, in `list` it is empty."""

    uri: str

    def read(self, name: str, start: int = 0, size_bytes: int | None = None) -> bytes:
        """All of it, or `size_bytes` from `start` on: fewer where the file ends before."""

    def read_into(self, name: str, start: int, buffers: Sequence[memoryview]) -> int:
        """Fill the buffers one after another with what follows `start`; returns how many bytes there were."""

    def list(self, folder: str = "") -> dict[str, int | None]:
        """What is directly inside, with the size of files; None for folders."""

    def close(self) -> None: ...


class Storage(Readable, Protocol):
    file_bytes: int  # larger files are split, so that a failed upload does not begin from the start

    def put(self, name: str, data: memoryview | bytes) -> None: ...

    def delete(self, name: str) -> None:
        """A file, or a folder with all that is in it. Missing: nothing to do."""

    def hide(self, folder: str, mark: str) -> None:
        """From now on the folder is not found, or without its file `mark`. Its space may come back with `sweep` only:
        that takes longer. Missing: nothing to do."""

    def identity(self) -> str:
        """The same for all who see this storage, and for nobody else; empty if that cannot be known."""

    def sweep(self) -> None:
        """Give back the space of all that was hidden, also by those who died before they could."""


def open_storage(uri: str | os.PathLike[str]) -> Storage:
    """The storage of a path or URL: `runs/ckpt`, `file:///data/ckpt`, `s3://bucket/prefix`, `memory://name`, …"""
    text = os.fspath(uri)
    if not text:
        raise UsageError(
            "the URI of the checkpoints is empty", hint='give a directory or a URL such as "s3://bucket/x"'
        )
    match = _SCHEME.match(text)
    if match is None or match[1].lower() in ("file", "local"):
        from everstep.storage.local import LocalStorage

        return LocalStorage(text[match.end() :] if match else text)
    from everstep.storage.remote import RemoteStorage

    return RemoteStorage(text, match[1].lower())


def full_uri(uri: str | os.PathLike[str]) -> str:
    """The `uri` that the storage will have, without opening it: the same from every directory."""
    text = os.fspath(uri)
    match = _SCHEME.match(text)
    if match is not None and match[1].lower() not in ("file", "local"):
        return text.rstrip("/")
    return str(Path(text[match.end() :] if match else text).expanduser().absolute())
