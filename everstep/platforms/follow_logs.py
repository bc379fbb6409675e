"""Lines of log files, several at once, as they are written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from everstep.platforms.base import LogLine

_PAUSE_S = 0.1
_MAX_READ = 1 << 20


@dataclass(frozen=True, slots=True)
class LogFile:
    node: str
    path: Path


def follow_files(files: Callable[[], Sequence[LogFile]], *, is_over: Callable[[], bool]) -> Iterator[LogLine]:
    """All lines from the beginning. `files` is called repeatedly: there may be more. Once it is over, the files are
    read to the end."""
    read: dict[Path, int] = {}
    while True:
        is_last = is_over()
        has_more = False
        for file in files():
            lines, read[file.path] = _new_lines(file.path, read.get(file.path, 0), is_last=is_last)
            has_more = has_more or bool(lines)
            yield from (LogLine(node=file.node, text=line) for line in lines)
        if is_last and not has_more:
            return
        if not has_more:
            time.sleep(_PAUSE_S)


def _new_lines(path: Path, position: int, *, is_last: bool) -> tuple[list[str], int]:
    """Whole lines after the position, and the position after them; at the end also what is not a whole line."""
    try:
        with path.open("rb") as file:
            file.seek(position)
            data = file.read(_MAX_READ)
    except FileNotFoundError:
        return [], position
    if not is_last and (len(data) < _MAX_READ or b"\n" in data):
        data = data[: data.rfind(b"\n") + 1]
    return data.decode(errors="replace").splitlines(), position + len(data)
