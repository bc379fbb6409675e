"""Private files of this user, replaced atomically: readers see the old file or the new one, whole.

The one place that makes files with mode 0600. Knows nothing of their content."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

MOST_LOG_BYTES = 10_000_000
_PRIVATE = 0o600


def make_folder(folder: Path) -> Path:
    """Make it private, and its missing parents too."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def put_in_place(aside: Path, folder: Path) -> None:
    """Rename a folder to its final name; another one with this name is replaced."""
    former = aside.with_name(f"{aside.name}-former")
    with contextlib.suppress(FileNotFoundError):
        os.rename(folder, former)
    os.rename(aside, folder)
    shutil.rmtree(former, ignore_errors=True)


def write(path: Path, data: bytes) -> None:
    """Replace the file. Not synced to the disk: its content can be made again."""
    make_folder(path.parent)
    with replacing(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> Path:
    write(path, text.encode())
    return path


def write_json(path: Path, value: Any) -> None:
    write(path, json.dumps(value, indent=1).encode() + b"\n")


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = _PRIVATE, is_durable: bool = False) -> Iterator[IO[bytes]]:
    """A new file that takes its place once it is complete; nothing of it is left after an exception."""
    aside = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            yield file
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise


def descriptor(path: str | os.PathLike[str], flags: int) -> int:
    """Open the file with these flags; it is made private if it is missing."""
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)


def append(path: str | os.PathLike[str]) -> IO[bytes]:
    """A log. Several processes may write to it: each write goes to the end."""
    return open(descriptor(path, os.O_WRONLY | os.O_APPEND), "ab")


def append_log(path: Path) -> IO[bytes]:
    """A log. If it has grown too large, a new one is begun, and the old one kept beside it."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > MOST_LOG_BYTES:
            os.replace(path, path.with_name(f"{path.name}.old"))
    return append(path)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of that name against all processes of this user; the kernel releases it for those that die."""
    make_folder(path.parent)
    with open(descriptor(path, os.O_WRONLY), "wb") as file:
        with if_it_can_lock():
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def if_it_can_lock() -> Iterator[None]:
    """Some network file systems cannot lock: there, no process is kept out."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
            raise
