"""Small files of this user: whole or not there at all, and for nobody else to read.

Not synced to the disk: what is written here can be made again. Knows nothing of what is in them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def make_folder(folder: Path) -> Path:
    """Those of its parents that are missing are made private too."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def write(path: Path, data: bytes) -> None:
    """Readers see what was there before, or all of it."""
    make_folder(path.parent)
    aside = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise


def write_json(path: Path, value: Any) -> None:
    write(path, json.dumps(value, indent=1).encode() + b"\n")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of that name against all processes of this user; the kernel lets go for those that die."""
    make_folder(path.parent)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb") as file:
        with if_it_can_lock():
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def if_it_can_lock() -> Iterator[None]:
    """Some network file systems cannot: there, nobody is kept out."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
            raise
