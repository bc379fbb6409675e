"""Storage behind fsspec: s3, gcs, memory and every other scheme with a driver.

A failed call is retried, ever more slowly, until a deadline; errors that no retry can mend are raised at once. A call
without progress is given up and retried over another connection. An upload that fails half-way is discarded, never
closed: closing would publish a part of it."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from everstep.errors import StorageUnreachable, TemporaryError, UsageError
from everstep.retry import patiently

T = TypeVar("T")

RETRY_S = 60.0
STALL_S = 90.0  # for one block of an upload, or for any other call

_WRITE_BYTES = 16 << 20
_FINAL = (PermissionError, FileNotFoundError, NotADirectoryError, IsADirectoryError, TypeError, ValueError, ImportError)
_PACKAGES = {
    "s3": "everstep[s3]",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "oci": "ocifs",
    "abfs": "adlfs",
    "hf": "huggingface_hub",
}


Progress = Callable[[], None]


class Stalled(Exception):
    """The call has made no progress for too long."""


class RemoteStorage:
    file_bytes = 256 << 20

    def __init__(self, uri: str, scheme: str, *, retry_s: float = RETRY_S, stall_s: float = STALL_S) -> None:
        import fsspec

        self.uri = uri.rstrip("/")
        self._retry_s, self._stall_s = retry_s, stall_s
        options: dict[str, Any] = {} if scheme == "memory" else {"skip_instance_cache": True}
        try:
            self._files, root = fsspec.core.url_to_fs(self.uri, use_listings_cache=False, **options)
        except Exception as error:  # drivers have their own exceptions, without a common base
            raise _not_opened(scheme, error) from error
        self._root = root.rstrip("/")

    def put(self, name: str, data: memoryview | bytes) -> None:
        whole = memoryview(data)

        def upload(report: Progress) -> None:
            file = self._files.open(self._path(name), "wb", block_size=_WRITE_BYTES)
            try:
                for start in range(0, len(whole), _WRITE_BYTES):
                    report()
                    file.write(bytes(whole[start : start + _WRITE_BYTES]))
                report()  # if given up: the memory may hold another state by now
                file.close()
            except BaseException:
                _discard(file)
                raise
            stored = self._files.info(self._path(name))["size"]
            if stored != len(whole):
                raise OSError(f"{len(whole):,} bytes were sent, {stored:,} are there")

        self._patiently(upload, f"put {name}")

    def read(self, name: str, start: int = 0, size_bytes: int | None = None) -> bytes:
        if size_bytes == 0:
            return b""
        where = {} if size_bytes is None else {"start": start, "end": start + size_bytes}

        def fetch(report: Progress) -> bytes:
            try:
                return bytes(self._files.cat_file(self._path(name), **where))
            except OSError as error:
                if error.errno == errno.EINVAL:  # S3's error for a file that ends earlier
                    return b""
                raise

        return self._patiently(fetch, f"read {name}")

    def read_into(self, name: str, start: int, buffers: Sequence[memoryview]) -> int:
        piece = memoryview(self.read(name, start, sum(len(buffer) for buffer in buffers)))
        done = 0
        for buffer in buffers:
            part = piece[done : done + len(buffer)]
            buffer[: len(part)] = part
            done += len(part)
        return done

    def list(self, folder: str = "") -> dict[str, int | None]:
        def look(report: Progress) -> dict[str, int | None]:
            self._files.invalidate_cache()
            path = self._path(folder)
            try:
                entries = self._files.ls(path, detail=True)
            except FileNotFoundError:
                return {}
            found: dict[str, int | None] = {}
            for entry in entries:
                name = entry["name"].rstrip("/")
                if name.strip("/") != path.strip("/"):
                    found[name.rsplit("/", 1)[-1]] = None if entry["type"] == "directory" else int(entry["size"])
            return found

        return self._patiently(look, f"list {folder or self.uri}")

    def delete(self, name: str) -> None:
        def remove(report: Progress) -> None:
            self._files.invalidate_cache()
            with contextlib.suppress(FileNotFoundError):
                self._files.rm(self._path(name), recursive=True)

        self._patiently(remove, f"delete {name}")

    def hide(self, folder: str, mark: str, *, unless: str = "") -> None:
        """A bucket has no folders to rename: delete all of it now."""
        held = self._read_if_there(f"{folder}/{mark}") if unless else None
        if unless and self._read_if_there(unless) is not None:
            return
        self.delete(f"{folder}/{mark}")
        if held is not None and self._read_if_there(unless) is not None:  # since the first look
            self.put(f"{folder}/{mark}", held)
            return
        self.delete(folder)

    def _read_if_there(self, name: str) -> bytes | None:
        try:
            return self.read(name)
        except FileNotFoundError:
            return None

    def identity(self) -> str:
        """fsspec's memory belongs to one process."""
        return f"{self.uri}#{os.getpid()}" if self.uri.startswith("memory:") else self.uri

    def sweep(self) -> None:
        pass

    def close(self) -> None:
        """Close the connections of drivers that keep some."""
        close_session = getattr(self._files, "close_session", None)
        session = getattr(self._files, "_s3", None)
        if close_session is not None and session is not None:
            close_session(self._files.loop, session)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")

    def _patiently(self, call: Callable[[Progress], T], what: str) -> T:
        def once() -> T:
            try:
                try:
                    return _watched(call, self._stall_s)
                except Stalled:  # the storage has not refused it: try again
                    return _watched(call, self._stall_s)
            except _FINAL:
                raise
            except Exception as error:  # drivers have their own exceptions, without a common base
                if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
                    raise PermissionError(f"{what} in {self.uri}: {error}") from error
                raise TemporaryError(
                    f"{what} in {self.uri}: {type(error).__name__}: {error}", code="storage-call-failed"
                ) from error

        return patiently(once, self._retry_s, gave_up=StorageUnreachable, hint="is the storage up and reachable?")


def _not_opened(scheme: str, error: Exception) -> UsageError:
    if isinstance(error, ImportError | ValueError):
        package = _PACKAGES.get(scheme)
        hint = f"pip install '{package}'" if package else "see fsspec's list of known schemes"
        return UsageError(f"{scheme}:// cannot be opened: {error}", hint=hint, code="storage-driver-missing")
    return UsageError(
        f"{scheme}:// cannot be opened: {type(error).__name__}: {error}",
        hint="check the URI, and the driver's settings and credentials on this machine",
        code="storage-not-opened",
    )


def _discard(file: Any) -> None:
    with contextlib.suppress(Exception):  # the upload's own error is the one to raise
        file.discard()
    file.closed = True


def _watched(call: Callable[[Progress], T], stall_s: float) -> T:
    """Return the call's result or raise its error; Stalled after `stall_s` without progress: a connection whose other
    end has vanished reports nothing and waits forever.

    The call runs in its own thread. Once it is given up, its next report raises, and it must leave nothing behind."""
    done, stalled = Future[T](), Stalled(f"no progress for {stall_s:.0f} s")
    moved_at, is_given_up = time.monotonic(), False

    def report() -> None:
        nonlocal moved_at
        if is_given_up:
            raise stalled
        moved_at = time.monotonic()

    def work() -> None:
        try:
            done.set_result(call(report))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=work, name="everstep storage call", daemon=True).start()
    while not done.done():
        if (left_s := moved_at + stall_s - time.monotonic()) <= 0:
            is_given_up = True
            raise stalled
        wait([done], left_s)
    return done.result()
