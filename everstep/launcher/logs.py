"""Workers' log files: the last lines of one, and the new lines of all as they come.

Workers write to their files themselves, so neither a slow terminal nor a dead agent holds them up or loses a line."""

from __future__ import annotations

from pathlib import Path

_TAIL_BYTES = 64 * 1024


def tail(path: Path, num_lines: int = 20) -> list[str]:
    """The last lines of a log; of one that does not exist, none."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-num_lines:]
    except FileNotFoundError:
        return []


class Follower:
    """Reads on in one log, a whole line at a time."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._rest = b""

    def new_lines(self) -> list[str]:
        data = self._file.read()
        if not data:
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [_shown(line) for line in lines]

    def last_lines(self) -> list[str]:
        """What is left, an unfinished last line included; then closed."""
        lines = self.new_lines()
        if self._rest:
            lines.append(_shown(self._rest))
        self._file.close()
        return lines


def _shown(line: bytes) -> str:
    # A progress bar redraws its line by "\r": only what would be seen at its end is shown.
    return line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
