"""What one worker has printed and the coordinator has not yet kept: read from its files, line by line.

Positions are bytes of the files, so that what was sent is known after any restart. A worker writes to its files itself;
they are only ever read here, and the space of old lines is freed (`free_old`) without moving the rest. A file that
cannot be read now is an OSError, never the end of the output; one that is gone is."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from everstep.launcher.logs import shown_line
from everstep.launcher.worker_files import WorkerFiles
from everstep.record.log_chunk import MAX_CHUNK_BYTES, MAX_LINE_BYTES, STDERR, STDOUT, Chunk, PrintedLine, chunk_of
from everstep.record.log_levels import LevelFinder
from everstep.record.log_masks import Masks
from everstep.storage.free_space import free_beginning

_READ_BYTES = MAX_CHUNK_BYTES // 2  # of each of the two files
_COUNT_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputPosition:
    """Between two lines."""

    line: int = 0
    stdout: int = 0
    stderr: int = 0

    def of(self, stream: str) -> int:
        return self.stdout if stream == STDOUT else self.stderr


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputLines:
    """Read together, to be sent as one chunk."""

    worker: str
    rank: int
    first_line: int
    end: OutputPosition
    chunk: Chunk
    dropped_lines: int = 0
    dropped_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Gap:
    """A part of a file that was freed before it was sent."""

    start: int
    end: int
    num_lines: int

    def lines_from(self, position: int) -> int:
        """A part of them may have been sent after all, in a call whose reply was lost."""
        return round(self.num_lines * (self.end - position) / max(1, self.end - self.start))


class WorkerOutput:
    def __init__(self, worker: str, files: WorkerFiles, *, rank: int, masks: Masks) -> None:
        self.worker, self.rank = worker, rank
        self._paths = {STDOUT: files.stdout, STDERR: files.stderr}
        self._masks = masks
        self._kept = self._at = OutputPosition()  # at the coordinator, and read
        self._levels = {STDOUT: LevelFinder(), STDERR: LevelFinder()}
        self._gaps: dict[str, _Gap] = {}
        self._dropped_lines = self._dropped_bytes = 0
        self._least_read = MAX_LINE_BYTES + masks.longest + 1  # of a line without its end: see `split_lines`

    def continue_from(self, position: OutputPosition) -> None:
        """What the coordinator has kept: usually all that was read, after a restart of either side maybe not."""
        self._kept = position
        self.rewind()

    def rewind(self) -> None:
        """Go back to the first line that the coordinator may not have, or to the first that still exists."""
        self._at, self._dropped_lines, self._dropped_bytes = self._kept, 0, 0
        for stream, gap in list(self._gaps.items()):
            if (position := self._at.of(stream)) >= gap.end:
                del self._gaps[stream]
                continue
            self._dropped_lines += gap.lines_from(position)
            self._dropped_bytes += gap.end - position
            self._at = replace(self._at, **{stream: gap.end})

    def next_lines(self, now: float, *, is_ended: bool) -> OutputLines | None:
        """None: nothing new. `is_ended`: a last line without its end is a line."""
        return self._next_lines(now, max(_READ_BYTES, self._least_read), is_ended=is_ended)

    def _next_lines(self, now: float, most_bytes: int, *, is_ended: bool) -> OutputLines | None:
        """`most_bytes`: read of each file."""
        found, at, num_encoded = list[tuple[str, float, list[str]]](), self._at, 0
        for stream, path in self._paths.items():
            data, read_at = _read(path, at.of(stream), now, most_bytes)
            if data.startswith(b"\0") and self._skip_hole(stream, path, data):
                return self._next_lines(now, most_bytes, is_ended=is_ended)
            is_whole = is_ended and len(data) < most_bytes
            texts, num_bytes = split_lines(data, self._masks, is_whole=is_whole)
            found.append((stream, read_at, texts))
            at = replace(at, **{stream: at.of(stream) + num_bytes})
            num_encoded += sum(len(text.encode(errors="replace")) + 1 for text in texts)
        if num_encoded > MAX_CHUNK_BYTES + 2 and most_bytes > self._least_read:
            # Each byte that cannot be decoded becomes a character of three bytes: read less at once.
            return self._next_lines(now, max(most_bytes // 2, self._least_read), is_ended=is_ended)
        lines = [
            PrintedLine(read_at, self._levels[stream].next(text), stream, text)
            for stream, read_at, texts in found
            for text in texts
        ]
        if not lines:
            return None
        first = self._at.line + self._dropped_lines
        self._at = replace(at, line=first + len(lines))
        return OutputLines(
            worker=self.worker,
            rank=self.rank,
            first_line=first,
            end=self._at,
            chunk=chunk_of(lines),
            dropped_lines=self._dropped_lines,
            dropped_bytes=self._dropped_bytes,
        )

    def num_left(self) -> int:
        """Bytes that are not at the coordinator, as far as it has said so."""
        at = {stream: max(self._kept.of(stream), gap.end) for stream, gap in self._gaps.items()}
        return sum(max(0, _size(path) - at.get(stream, self._kept.of(stream))) for stream, path in self._paths.items())

    def drop_read(self) -> None:
        """The coordinator refuses the lines that were read last: skip and count them."""
        num_lines, streams = self._at.line - self._kept.line, dict[str, _Gap]()
        for stream in self._paths:
            start, end = self._kept.of(stream), self._at.of(stream)
            if end > start:
                streams[stream] = _Gap(start=start, end=end, num_lines=0 if streams else num_lines)
        self._gaps = streams
        self.rewind()

    def free_old(self, most_bytes: int) -> None:
        """Keep at most this much of each file. Lines beyond it that were not sent are skipped, and counted."""
        for stream, path in self._paths.items():
            if _used(path) <= most_bytes:
                continue
            first_kept = _size(path) - most_bytes // 2  # half of it: else a little would be freed all the time
            if first_kept > self._at.of(stream):
                self._skip(stream, *_lines_until(path, self._at.of(stream), first_kept))
            free_beginning(path, min(first_kept, self._at.of(stream)))

    def _skip(self, stream: str, num_lines: int, end: int) -> None:
        gap, start = self._gaps.get(stream), self._kept.of(stream)
        self._gaps[stream] = _Gap(start=start, end=end, num_lines=num_lines + (gap.num_lines if gap else 0))
        self.rewind()

    def _skip_hole(self, stream: str, path: Path, data: bytes) -> bool:
        """An agent before us has freed what comes next; how many lines that were is not known any more."""
        start = self._at.of(stream)
        zeros = len(data) - len(data.lstrip(b"\0"))
        end = max(start + zeros, _next_data(path, start))
        if _used(path) >= _size(path):  # no hole: the worker has printed zeros
            return False
        self._skip(stream, 0, end)
        return True


def split_lines(data: bytes, masks: Masks, *, is_whole: bool) -> tuple[list[str], int]:
    """The lines at the beginning of `data`, masked, and how many bytes they take. Without its end, a line counts if
    there is nothing more to come (`is_whole`) or it is very long; no value of a secret is cut in two."""
    end = len(data) if is_whole else data.rfind(b"\n") + 1
    if end == 0 and len(data) > MAX_LINE_BYTES + masks.longest:
        end = masks.cut_before(data, MAX_LINE_BYTES) or MAX_LINE_BYTES
    if end == 0:
        return [], 0
    taken = masks.apply(data[:end]).removesuffix(b"\n")
    return [piece for line in taken.split(b"\n") for piece in _pieces(shown_line(line))], end


def _pieces(line: str) -> list[str]:
    """Of a bearable length each."""
    return [line[at : at + MAX_LINE_BYTES] for at in range(0, len(line), MAX_LINE_BYTES)] or [""]


def _read(path: Path, start: int, now: float, most_bytes: int) -> tuple[bytes, float]:
    """The next bytes of a file, and a time when they were there."""
    if _size(path) <= start:
        return b"", now
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(most_bytes), min(now, os.fstat(file.fileno()).st_mtime)
    except FileNotFoundError:  # moved away
        return b"", now


def _size(path: Path) -> int:
    """0 if it is gone, or not made yet."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _used(path: Path) -> int:
    """Bytes on the disk: fewer than its size, once some were freed."""
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


def _next_data(path: Path, start: int) -> int:
    """Where the hole ends that `start` is in; `start` if it is in none."""
    try:
        with path.open("rb") as file:
            return os.lseek(file.fileno(), start, os.SEEK_DATA)
    except OSError:  # nothing but the hole, or a file system without holes
        return start


def _lines_until(path: Path, start: int, at_least: int) -> tuple[int, int]:
    """How many lines there are from `start` to the first line's end at or after `at_least`, and where that is."""
    num_lines, at = 0, start
    with path.open("rb") as file:
        file.seek(start)
        while at < at_least:
            data = file.read(min(_COUNT_BYTES, at_least - at))
            if not data:
                return num_lines, at
            num_lines, at = num_lines + data.count(b"\n"), at + len(data)
        rest = file.read(_COUNT_BYTES)
    if (end := rest.find(b"\n")) >= 0:
        return num_lines + 1, at + end + 1
    return num_lines, at
