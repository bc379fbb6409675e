"""Scalars in TensorBoard's event files, read piece by piece as they grow, without TensorBoard.

A file is a sequence of records: length, its checksum, an `Event` of protocol buffers, its checksum. Of an event, only
the step, the time and numbers are read: `simple_value`, and tensors without dimensions. Pure. The format has not
changed since 2015; a test compares it with TensorBoard's own writer."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

OURS = ".everstep"  # ends the names of files that a Trainer writes, which reports the same metrics itself
MAX_RECORD_BYTES = 256 << 20  # a longer one is not a record, but a damaged file
_HEAD_BYTES, _TAIL_BYTES = 12, 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Of TensorProto, by the number of its dtype: field of its values, and how the bytes of `tensor_content` are read.
_NUMBERS = {
    1: (5, "<f"),
    2: (6, "<d"),
    3: (7, "<i"),
    4: (7, "<B"),
    5: (7, "<h"),
    6: (7, "<b"),
    9: (10, "<q"),
    10: (11, "<?"),
    17: (7, "<H"),
    19: (13, "<e"),
    22: (16, "<I"),
    23: (17, "<Q"),
}
_BFLOAT16 = 14


class Scalar(NamedTuple):
    step: int
    time: float
    tag: str
    value: float


class Damaged(ValueError):
    """What follows cannot be read, now or later."""


def read_scalars(data: bytes) -> tuple[list[Scalar], int]:
    """Of all whole records at the beginning of `data`, and how many bytes these take. Raises Damaged if the first one
    cannot be read."""
    found, at = list[Scalar](), 0
    while len(data) - at >= _HEAD_BYTES:
        length, check = struct.unpack_from("<QI", data, at)
        if length > MAX_RECORD_BYTES or _masked_crc(data[at : at + 8]) != check:
            if at:
                break  # raised when it is the first
            raise Damaged(f"not a record of an event file: its length is {length}, with a wrong checksum")
        end = at + _HEAD_BYTES + length + _TAIL_BYTES
        if end > len(data):
            break
        try:
            found += _scalars_of(data[at + _HEAD_BYTES : end - _TAIL_BYTES])
        except (ValueError, IndexError, struct.error) as error:
            if at:
                break
            raise Damaged(f"not an event: {error}") from None
        at = end
    return found, at


def needed_bytes(data: bytes) -> int:
    """How long the record is that `data` begins with; 0 if that is not known yet."""
    return struct.unpack_from("<Q", data)[0] + _HEAD_BYTES + _TAIL_BYTES if len(data) >= _HEAD_BYTES else 0


def _scalars_of(event: bytes) -> Iterator[Scalar]:
    time, step, summaries = 0.0, 0, list[bytes]()
    for number, kind, value in _fields(event):
        if (number, kind) == (1, _FIXED64):
            (time,) = struct.unpack("<d", value)
        elif (number, kind) == (2, _VARINT):
            step = _signed(value)
        elif (number, kind) == (5, _BYTES):
            summaries.append(value)
    for summary in summaries:
        for number, kind, value in _fields(summary):
            if (number, kind) == (1, _BYTES) and (named := _named_number(value)) is not None:
                yield Scalar(step, time, *named)


def _named_number(data: bytes) -> tuple[str, float] | None:
    """Of a Summary.Value; None if it is an image, a histogram, a text."""
    tag, number, plugin = "", None, "scalars"
    for field, kind, value in _fields(data):
        if (field, kind) == (1, _BYTES):
            tag = value.decode(errors="replace")
        elif (field, kind) == (2, _FIXED32):
            (number,) = struct.unpack("<f", value)
        elif (field, kind) == (8, _BYTES):
            number = _tensor_number(value)
        elif (field, kind) == (9, _BYTES):
            plugin = _plugin_name(value) or plugin
    return (tag, number) if number is not None and plugin == "scalars" else None


def _plugin_name(metadata: bytes) -> str:
    for field, kind, value in _fields(metadata):
        if (field, kind) == (1, _BYTES):
            return next((name.decode() for each, _, name in _fields(value) if each == 1), "")
    return ""


def _tensor_number(data: bytes) -> float | None:
    dtype, content, values = 0, b"", dict[int, bytes | int]()
    for field, kind, value in _fields(data):
        if (field, kind) == (1, _VARINT):
            dtype = value
        elif (field, kind) == (2, _BYTES) and any(each == 2 for each, _, _ in _fields(value)):
            return None  # it has dimensions
        elif (field, kind) == (4, _BYTES):
            content = value
        else:
            values[field] = value
    if dtype == _BFLOAT16:
        bits = content or _first(values.get(13, 0), "<H")
        return _unpacked("<f", b"\0\0" + bits[:2])
    if dtype not in _NUMBERS:
        return None
    field, form = _NUMBERS[dtype]
    if content:
        return _unpacked(form, content)
    if field not in values:
        return 0.0  # protocol buffers leave out a zero
    return _unpacked(form, _first(values[field], form))


def _first(value: bytes | int, form: str) -> bytes:
    """Of a repeated field: packed or alone, as numbers of variable length or as they are."""
    size = struct.calcsize(form)
    if form in ("<f", "<d") and isinstance(value, bytes):
        return value[:size]
    number = value if isinstance(value, int) else _varint(value, 0)[0]
    return (number & (1 << 8 * size) - 1).to_bytes(size, "little")


def _unpacked(form: str, data: bytes) -> float:
    return float(struct.unpack_from(form, data)[0])


# --- protocol buffers ---


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        value: Any
        if kind == _VARINT:
            value, at = _varint(data, at)
        elif kind == _BYTES:
            size, at = _varint(data, at)
            value, at = _taken(data, at, size), at + size
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
            value, at = _taken(data, at, size), at + size
        else:
            raise ValueError(f"a field of kind {kind}")
        yield number, kind, value


def _taken(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise ValueError(f"{size} bytes at {at}, but {len(data)} in all")
    return data[at : at + size]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


# --- the checksum of a record's length: CRC-32C, turned and shifted as TensorFlow does ---


def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        found.append(byte)
    return tuple(found)


_CRC = _table()


def _masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
