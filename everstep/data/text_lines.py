"""The lines of a text file by number: the file stays on disk, and one offset is kept for every few lines.

The index is made when the object is: one pass over the file. It travels with the object to other processes, which map
the same file. A file that has changed since is refused."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from everstep.errors import UsageError

STRIDE = 32  # lines per offset that is kept
CHUNK = 1 << 22


class TextLines:
    """len(lines), lines[n]: text without its line end."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self._map: mmap.mmap | None = None
        self._stamp = _stamp(self.path)
        self._size, self._offsets = _index(self.path)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, number: int) -> str:
        if not 0 <= number < self._size:
            raise IndexError(f"line {number} of {self.path}, which has {self._size}")
        text = self._mapped()
        start = int(self._offsets[number // STRIDE])
        for _ in range(number % STRIDE):
            start = text.find(b"\n", start) + 1
        stop = text.find(b"\n", start)
        return text[start : stop if stop >= 0 else len(text)].removesuffix(b"\r").decode()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_map": None}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)

    def _mapped(self) -> mmap.mmap:
        if self._map is None:
            if _stamp(self.path) != self._stamp:
                raise UsageError(
                    f"{self.path} has changed since its lines were counted",
                    hint="start again",
                    code="text-file-changed",
                )
            with self.path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._map


def _index(path: Path) -> tuple[int, np.ndarray[Any, np.dtype[np.int64]]]:
    """The number of lines, and the offsets of lines 0, STRIDE, 2 x STRIDE, …"""
    num_ends, position, last = 0, 0, b"\n"
    found = [np.zeros(1, np.int64)]
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == 10)
            # The line after end number e (counted from 0) is line e + 1: kept if that is a multiple of STRIDE.
            found.append(position + 1 + ends[(STRIDE - 1 - num_ends) % STRIDE :: STRIDE])
            num_ends += ends.size
            position += len(chunk)
            last = chunk[-1:]
    return num_ends + (last != b"\n"), np.concatenate(found)


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
