"""A chunk of a log: up to 256 KiB of lines, compressed, with the time, level and stream of each.

Pure. The text of all lines is one piece, so that a search is one pass over it; times and levels are apart from it, and
are read only for lines that were found."""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

STDOUT, STDERR = "stdout", "stderr"
MAX_CHUNK_BYTES = 256 * 1024  # of text
MAX_LINE_BYTES = 16 * 1024  # a longer one is kept as several
_STDERR_BIT = 0x80
_HEAD = struct.Struct("<III")  # lines, bytes of text, bytes of packed marks
_MARK_BYTES = 9  # of a line: level and stream, and a time of 8 bytes
_LEVEL = 6  # zlib's


@dataclass(frozen=True, slots=True)
class PrintedLine:
    """One line of a worker. `time`: when it was read, seconds since the epoch."""

    time: float
    level: int
    stream: str
    text: str


@dataclass(frozen=True)
class Chunk:
    """Lines as they were unpacked, but for their marks: a search that finds nothing needs none."""

    text: bytes  # each line ends with a newline
    num_lines: int
    packed_marks: bytes

    @cached_property
    def marks(self) -> bytes:
        return _inflate(self.packed_marks, self.num_lines * _MARK_BYTES)

    @property
    def levels(self) -> bytes:
        """One byte per line; see `level_at`."""
        return self.marks[: self.num_lines]

    @cached_property
    def times(self) -> array[int]:
        """Milliseconds since the epoch."""
        return array("q", self.marks[self.num_lines :])

    @cached_property
    def lines(self) -> list[bytes]:
        return self.text.split(b"\n")[:-1]

    def level_at(self, index: int) -> int:
        return self.marks[index] & ~_STDERR_BIT

    def line(self, index: int) -> PrintedLine:
        mark = self.marks[index]
        stream = STDERR if mark & _STDERR_BIT else STDOUT
        text = self.lines[index].decode(errors="replace")
        return PrintedLine(self.times[index] / 1000, mark & ~_STDERR_BIT, stream, text)

    def pack(self) -> bytes:
        text = zlib.compress(self.text, _LEVEL)
        return _HEAD.pack(self.num_lines, len(self.text), len(self.packed_marks)) + self.packed_marks + text


def chunk_of(lines: Sequence[PrintedLine]) -> Chunk:
    """The text of a line must not hold a newline."""
    text = b"".join(line.text.encode(errors="replace") + b"\n" for line in lines)
    levels = bytes(line.level | (_STDERR_BIT if line.stream == STDERR else 0) for line in lines)
    times = array("q", (round(line.time * 1000) for line in lines))
    return Chunk(text, len(lines), zlib.compress(levels + times.tobytes(), _LEVEL))


def join(chunks: Iterable[Chunk]) -> Chunk:
    chunks = list(chunks)
    levels = b"".join(each.levels for each in chunks)
    times = b"".join(each.marks[each.num_lines :] for each in chunks)
    return Chunk(b"".join(each.text for each in chunks), len(levels), zlib.compress(levels + times, _LEVEL))


def unpack(data: bytes) -> Chunk:
    """ValueError if it is not a chunk, or more than one may be: a few bytes can unpack to gigabytes."""
    try:
        num_lines, num_bytes, num_packed = _HEAD.unpack_from(data)
        if num_bytes > 2 * MAX_CHUNK_BYTES or num_lines > num_bytes:
            raise ValueError(f"{num_lines} lines with {num_bytes} bytes are more than a chunk may have")
    except struct.error as error:
        raise ValueError(f"not a chunk of a log: {error}") from None
    text = _inflate(data[_HEAD.size + num_packed :], num_bytes)
    return Chunk(text, num_lines, data[_HEAD.size : _HEAD.size + num_packed])


def num_lines(head: bytes) -> int:
    """Of a packed chunk, from its first bytes."""
    return int(_HEAD.unpack_from(head)[0])


def check(chunk: Chunk) -> None:
    """What its size alone does not show; ValueError."""
    if len(chunk.levels) != chunk.text.count(b"\n") or not chunk.text.endswith(b"\n"):
        raise ValueError(f"{chunk.text.count(10)} lines of text, but marks of {chunk.num_lines}")


def _inflate(packed: bytes, num_bytes: int) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        found = unpacker.decompress(packed, num_bytes + 1)
    except zlib.error as error:
        raise ValueError(f"not a chunk of a log: {error}") from None
    if len(found) != num_bytes or not unpacker.eof:
        raise ValueError(f"not a chunk of a log: {len(found)} bytes where {num_bytes} were promised")
    return found
