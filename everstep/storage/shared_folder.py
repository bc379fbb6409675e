"""A job's folder that its submitter and all nodes reach: a path, or any URI that fsspec knows.

Files are whole or missing. On a file system they are private to their owner; in a bucket, everyone with access to the
bucket can read them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from everstep.errors import EverstepError, StorageUnreachable, UsageError
from everstep.storage import private_file


def below(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedFolder:
    uri: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # of fsspec's driver

    def write(self, name: str, data: bytes) -> None:
        with self._reported(name):
            if (path := self.local) is not None:
                private_file.write(path / name, data)
            else:
                self._system().pipe_file(below(self.uri, name), data)

    def read(self, name: str) -> bytes | None:
        """None if it is missing."""
        with self._reported(name):
            try:
                if (path := self.local) is not None:
                    return (path / name).read_bytes()
                found: bytes = self._system().cat_file(below(self.uri, name))
                return found
            except FileNotFoundError:
                return None

    def send(self, name: str, path: Path) -> None:
        """Write it from a file that may be larger than the memory."""
        with self._reported(name):
            if (folder := self.local) is not None:
                private_file.make_folder(folder)
                with path.open("rb") as source, private_file.replacing(folder / name, is_durable=True) as file:
                    shutil.copyfileobj(source, file)
            else:
                self._system().put_file(str(path), below(self.uri, name))

    def fetch(self, name: str, path: Path) -> bool:
        """Read it into a private file; False if it is missing."""
        private_file.make_folder(path.parent)
        with self._reported(name):
            try:
                with private_file.replacing(path) as file, self._open(name) as source:
                    shutil.copyfileobj(source, file)
                return True
            except FileNotFoundError:
                return False

    def remove(self, names: Iterable[str]) -> None:
        """Those that exist; and the folder, if it is empty then."""
        for name in names:
            with self._reported(name), contextlib.suppress(FileNotFoundError):
                if (path := self.local) is not None:
                    (path / name).unlink()
                else:
                    self._system().rm(below(self.uri, name))  # not every driver has rm_file
        if (path := self.local) is not None:
            with contextlib.suppress(OSError):
                path.rmdir()

    def _open(self, name: str) -> IO[bytes]:
        if (folder := self.local) is not None:
            return (folder / name).open("rb")
        found: IO[bytes] = self._system().open(below(self.uri, name), "rb")
        return found

    @property
    def local(self) -> Path | None:
        scheme, colon, rest = self.uri.partition("://")
        return Path(rest if colon else self.uri) if not colon or scheme in ("file", "local") else None

    def _system(self) -> Any:
        import fsspec

        try:
            system, _ = fsspec.core.url_to_fs(self.uri, **self.options)
        except (ImportError, ValueError) as error:
            raise UsageError(
                f"{self.uri} cannot be reached: {error}",
                hint="pip install the package that it names",
                code="folder-driver-missing",
            ) from None
        system.invalidate_cache()  # other processes write here, too
        return system

    @contextlib.contextmanager
    def _reported(self, name: str) -> Iterator[None]:
        try:
            yield
        except EverstepError:
            raise
        except Exception as error:  # drivers have errors of their own, and no common base
            shown = (str(error) or type(error).__name__).splitlines()[0]
            raise StorageUnreachable(
                f"{below(self.uri, name)}: {shown}",
                hint="check the permissions and the network",
                code="folder-unreachable",
            ) from None
