"""Small disks under what a job writes, which fill up and become read-only. Needs root.

Read-only is a disk for those who open a file now: what is open for writing cannot be taken away, as on any file
system."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

_BLOCK = 1 << 12


class Disk:
    def __init__(self, folder: Path, size_mb: int) -> None:
        self.folder = folder
        self._size_mb = size_mb
        self._filler = folder / "filler"
        self.is_read_only = False
        self._read_only = folder.with_name(f"{folder.name}-read-only")

    def mount(self) -> None:
        for folder in (self.folder, self._read_only):
            folder.mkdir()
        _mount("-t", "tmpfs", "-o", f"size={self._size_mb}m", "tmpfs", self.folder)
        _mount("--bind", self.folder, self._read_only)
        _mount("-o", "remount,bind,ro", self._read_only)

    def unmount(self) -> None:
        """Whatever is above and below; nobody is there any more who would mind."""
        for place in reversed([place for place in _mounts() if place in (str(self.folder), str(self._read_only))]):
            subprocess.run(["umount", "--lazy", place], check=False, capture_output=True)

    def fill(self) -> None:
        with self._filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(_BLOCK))
            except OSError:
                pass

    def empty(self) -> None:
        self._filler.unlink(missing_ok=True)

    def forbid_writing(self) -> None:
        self.is_read_only = True
        _mount("--bind", self._read_only, self.folder)

    def allow_writing(self) -> None:
        subprocess.run(["umount", "--lazy", self.folder], check=True)
        self.is_read_only = False


def _mount(*arguments: object) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True)


def _mounts() -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        yield line.split()[4]
