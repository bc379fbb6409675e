"""A job's folder that its submitter and all nodes reach: a path, or any URI that fsspec knows.

Files are whole or not there. On a file system they are for nobody else to read; in a bucket, whoever may read the
bucket may read them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everstep.errors import EverstepError, StorageUnreachable, UsageError
from everstep.storage import private_file


def below(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedFolder:
    uri: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # of fsspec's driver

    def write(self, name: str, data: bytes) -> None:
        with self._told(name):
            if (path := self._local) is not None:
                private_file.write(path / name, data)
            else:
                self._system().pipe_file(below(self.uri, name), data)

    def read(self, name: str) -> bytes | None:
        """None: there is none."""
        with self._told(name):
            try:
                if (path := self._local) is not None:
                    return (path / name).read_bytes()
                found: bytes = self._system().cat_file(below(self.uri, name))
                return found
            except FileNotFoundError:
                return None

    def remove(self, names: Iterable[str]) -> None:
        """Those that are there; and the folder, if that was all."""
        for name in names:
            with self._told(name), contextlib.suppress(FileNotFoundError):
                if (path := self._local) is not None:
                    (path / name).unlink()
                else:
                    self._system().rm(below(self.uri, name))  # not every driver has rm_file
        if (path := self._local) is not None:
            with contextlib.suppress(OSError):
                path.rmdir()

    @property
    def _local(self) -> Path | None:
        scheme, colon, rest = self.uri.partition("://")
        return Path(rest if colon else self.uri) if not colon or scheme in ("file", "local") else None

    def _system(self) -> Any:
        import fsspec

        try:
            system, _ = fsspec.core.url_to_fs(self.uri, **self.options)
        except (ImportError, ValueError) as error:
            raise UsageError(f"{self.uri} cannot be reached: {error}", hint="pip install what it names") from None
        system.invalidate_cache()  # others write here, too
        return system

    @contextlib.contextmanager
    def _told(self, name: str) -> Iterator[None]:
        try:
            yield
        except EverstepError:
            raise
        except Exception as error:  # drivers have errors of their own, and no common base
            shown = (str(error) or type(error).__name__).splitlines()[0]
            raise StorageUnreachable(
                f"{below(self.uri, name)}: {shown}", hint="may it be read and written from here?"
            ) from None
