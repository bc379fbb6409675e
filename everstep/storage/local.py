"""Storage in a local directory: when `put` returns, the file is on the disk and survives a power cut.

A file is written aside, synced, renamed, and its folder synced. Large files bypass the page cache where possible:
copying into it takes longer than the disk, and training has better use for the memory. Hidden folders have a reserved
name until they are swept away. Files are private to their owner."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from everstep.errors import UsageError

_ASIDE, _GONE, _IDENTITY = ".aside-", ".gone-", ".everstep-storage"
_WRITE_BYTES = 64 << 20
_DIRECT_BYTES = 1 << 20  # smaller files are not worth it
_PAGE_BYTES = 4096  # direct writes begin and end at multiples of it, in memory and in the file
_MOST_BUFFERS = 1024  # of one system call


class LocalStorage:
    file_bytes = 4 << 30

    def __init__(self, path: str) -> None:
        self.root = Path(path).expanduser().absolute()
        self.uri = str(self.root)
        self._was_there = False
        self._identity = ""
        self._looking = threading.Lock()
        if self.root.exists() and not self.root.is_dir():
            raise UsageError(
                f"{self.root} is a file", hint="give a directory for checkpoints", code="storage-root-is-a-file"
            )

    def put(self, name: str, data: memoryview | bytes) -> None:
        path = self.root / name
        self._make_folder(path.parent)
        aside = path.with_name(f"{_ASIDE}{os.urandom(4).hex()}-{path.name}")  # two may put the same name at once
        try:
            _write_durably(aside, memoryview(data))
            os.rename(aside, path)
        except BaseException:
            with contextlib.suppress(OSError):  # free the space of a full disk
                aside.unlink()
            raise
        _sync_folder(path.parent)

    def read(self, name: str, start: int = 0, size_bytes: int | None = None) -> bytes:
        with open(self.root / name, "rb") as file:
            file.seek(start)
            return file.read(-1 if size_bytes is None else size_bytes)

    def read_into(self, name: str, start: int, buffers: Sequence[memoryview]) -> int:
        left = [buffer for buffer in buffers if len(buffer)]
        done = 0
        with open(self.root / name, "rb", buffering=0) as file:
            while left and (got := os.preadv(file.fileno(), left[:_MOST_BUFFERS], start + done)):
                done += got
                while left and got >= len(left[0]):
                    got -= len(left.pop(0))
                if got:
                    left[0] = left[0][got:]
        return done

    def list(self, folder: str = "") -> dict[str, int | None]:
        found: dict[str, int | None] = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(self.root / folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    found[entry.name] = None if entry.is_dir() else entry.stat().st_size
        return found

    def delete(self, name: str) -> None:
        path = self.root / name
        with contextlib.suppress(FileNotFoundError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
            _sync_folder(path.parent)

    def hide(self, folder: str, mark: str, *, unless: str = "") -> None:
        """Not synced: a folder that a power cut brings back is whole."""
        if unless and (self.root / unless).exists():
            return
        gone = self.root / f"{_GONE}{os.urandom(4).hex()}"
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.root / folder, gone)
            if unless and (self.root / unless).exists():  # since the first look
                os.rename(gone, self.root / folder)

    def identity(self) -> str:
        """The first process writes it down: the same path may be another disk elsewhere."""
        if not self._identity:
            self._make_folder(self.root)
            folder = self.root / _IDENTITY
            if not folder.exists():
                self._write_identity(folder)
            self._identity = (folder / "id").read_text()
        return self._identity

    def _write_identity(self, folder: Path) -> None:
        aside = self.root / f"{_ASIDE}{os.urandom(4).hex()}"
        aside.mkdir(mode=0o700)
        try:
            _write_durably(aside / "id", memoryview(os.urandom(16).hex().encode()))
            os.rename(aside, folder)  # never over another process's: that folder is not empty
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise

    def sweep(self) -> None:
        for name in self.list():
            if name.startswith(_GONE):
                self.delete(name)

    def close(self) -> None:
        pass

    def _make_folder(self, folder: Path) -> None:
        """A root that has vanished is not made again: it may be an unmounted disk, and would fill the one below it."""
        with self._looking:
            if not self.root.is_dir():
                if self._was_there:
                    problem = "the directory of the checkpoints has vanished"
                    raise FileNotFoundError(errno.ENOENT, problem, str(self.root))
                _make_durably(self.root)
            self._was_there = True
        if folder != self.root:
            _make_durably(folder)


def _make_durably(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_durably(folder.parent)
    with contextlib.suppress(FileExistsError):  # another worker was faster
        folder.mkdir(mode=0o700)
    _sync_folder(folder.parent)


def _write_durably(path: Path, data: memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        done = _write_past_cache(descriptor, data)
        while done < len(data):
            done += os.pwrite(descriptor, data[done : done + _WRITE_BYTES], done)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_past_cache(descriptor: int, data: memoryview) -> int:
    """Write as many whole pages as possible, from the beginning; return how many bytes."""
    if len(data) < _DIRECT_BYTES or data.readonly or _address(data) % _PAGE_BYTES:
        return 0
    done, end = 0, len(data) // _PAGE_BYTES * _PAGE_BYTES
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        while done < end and done % _PAGE_BYTES == 0:
            done += os.pwrite(descriptor, data[done : min(done + _WRITE_BYTES, end)], done)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # the file system does not support it
            raise
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return done


def _address(data: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(data))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems sync names themselves
            raise
    finally:
        os.close(descriptor)
