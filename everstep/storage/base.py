"""Where checkpoints are kept, behind a few calls: put, read, list, delete, hide, sweep, close.

A local directory is written with plain system calls, because only they can guarantee durability; all others are
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
    """Names are relative, with `/`. A missing name is FileNotFoundError."""

    uri: str

    def read(self, name: str, start: int = 0, size_bytes: int | None = None) -> bytes:
        """All of it, or `size_bytes` from `start` on: fewer if the file ends earlier."""

    def read_into(self, name: str, start: int, buffers: Sequence[memoryview]) -> int:
        """Fill the buffers one after another with the bytes from `start` on; return how many there were."""


class Storage(Readable, Protocol):
    file_bytes: int  # larger files are split, so that a failed upload does not begin from the start

    def list(self, folder: str = "") -> dict[str, int | None]:
        """The entries of the folder, with the size of files; None for folders. A missing folder is empty."""

    def close(self) -> None: ...

    def put(self, name: str, data: memoryview | bytes) -> None: ...

    def delete(self, name: str) -> None:
        """A file, or a folder with its content. Does nothing if it is missing."""

    def hide(self, folder: str, mark: str, *, unless: str = "") -> None:
        """From now on the folder is not found, or without its file `mark`. Only `sweep`, which takes longer, frees its
        space. Does nothing if it is missing. If there is a file `unless`, the folder is there again at the end: that is
        looked up once the folder is hidden."""

    def identity(self) -> str:
        """Equal for all processes that see this storage, and only for them; empty if that is unknown."""

    def sweep(self) -> None:
        """Free the space of everything hidden, also by processes that died before they could."""


def open_storage(uri: str | os.PathLike[str]) -> Storage:
    """The storage of a path or URL: `runs/ckpt`, `file:///data/ckpt`, `s3://bucket/prefix`, `memory://name`, …"""
    text = os.fspath(uri)
    if not text:
        raise UsageError(
            "the URI of the checkpoints is empty",
            hint="give a directory or a URL, for example s3://bucket/x",
            code="storage-uri-empty",
        )
    scheme, path = _split(text)
    if not scheme:
        from everstep.storage.local import LocalStorage

        return LocalStorage(path)
    from everstep.storage.remote import RemoteStorage

    return RemoteStorage(text, scheme)


def full_uri(uri: str | os.PathLike[str]) -> str:
    """The `uri` that the storage will have, without opening it: the same from every directory."""
    text = os.fspath(uri)
    scheme, path = _split(text)
    return text.rstrip("/") if scheme else str(Path(path).expanduser().absolute())


def _split(text: str) -> tuple[str, str]:
    """The scheme, empty for a local path, and what follows it."""
    match = _SCHEME.match(text)
    if match is None:
        return "", text
    scheme = match[1].lower()
    return "" if scheme in ("file", "local") else scheme, text[match.end() :]
