"""Workers' log files: the last lines of one, and the new lines of all.

Workers write to their files themselves, so neither a slow terminal nor a dead agent holds them up or loses a line."""

from __future__ import annotations

import contextlib
import locale
import os
from collections.abc import Sequence
from pathlib import Path

from everstep.storage import private_file

_TAIL_BYTES = 64 * 1024
_READ_BYTES = 1 << 20


def tail(path: Path, num_lines: int = 20) -> list[str]:
    """The last lines of a log; none if it does not exist."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            return [shown_line(line) for line in file.read(_TAIL_BYTES).splitlines()[-num_lines:]]
    except FileNotFoundError:
        return []


class Follower:
    """Reads on in one log, a whole line at a time."""

    def __init__(self, path: Path, *, is_from_end: bool = False) -> None:
        self._file = path.open("rb")
        self._rest = b""
        if is_from_end:
            self._file.seek(0, os.SEEK_END)

    def new_lines(self) -> list[str]:
        """Up to 1 MB at a time: no more is held in memory than can be shown."""
        try:
            data = self._file.read(_READ_BYTES)
        except OSError:  # of a file system that does not answer now
            return []
        if not data:
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [shown_line(line) for line in lines]

    def last_lines(self) -> list[str]:
        """The rest, including an unfinished last line; then closed."""
        lines = self.new_lines()
        while more := self.new_lines():
            lines += more
        if self._rest:
            lines.append(shown_line(self._rest))
        self._file.close()
        return lines


class FilteredCopy:
    """A file with those lines of all workers that contain one of some texts."""

    def __init__(self, path: Path, texts: Sequence[str]) -> None:
        self._path, self._texts = path, tuple(texts)

    def add(self, lines: Sequence[str]) -> None:
        chosen = [line for line in lines if any(text in line for text in self._texts)]
        if not chosen:
            return
        with contextlib.suppress(OSError), private_file.append(self._path) as file:  # no room for it
            file.write("".join(f"{line}\n" for line in chosen).encode())


def shown_line(line: bytes) -> str:
    # A progress bar redraws its line by "\r": only what would be seen at its end is shown.
    return _decoded(line).rstrip("\r").rpartition("\r")[2]


def _decoded(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:  # workers write in the encoding of the locale that they share with us
        return line.decode(locale.getpreferredencoding(False), errors="replace")
