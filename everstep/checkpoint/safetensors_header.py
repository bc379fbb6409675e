"""Parse the head of an untrusted safetensors file: every number is checked against the file before it is used.

Pure. Knows nothing of torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from everstep.checkpoint import strict_json
from everstep.checkpoint.image import FORMAT, ITEM_BYTES, Piece, TensorMeta
from everstep.checkpoint.strict_json import broken, natural, parse_json, shown

LENGTH_BYTES = 8
_MOST_HEAD_BYTES = 100 << 20  # safetensors' own limit
_MOST_ELEMENTS = 1 << 53


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorEntry:
    """A tensor in a file: bytes [start, end) of the file itself."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def parse_length(first: bytes, size_bytes: int, where: str) -> int:
    """The number of bytes of the JSON that follows the first eight."""
    if len(first) < LENGTH_BYTES:
        broken(where, f"expected 8 bytes that give the header's length, the file has {len(first)}", offset=0)
    length = int.from_bytes(first[:LENGTH_BYTES], "little")
    if length > min(_MOST_HEAD_BYTES, size_bytes - LENGTH_BYTES):
        broken(where, f"expected a header within the file's {size_bytes:,} bytes, found length {length:,}", offset=0)
    return length


def parse_header(text: bytes, size_bytes: int, where: str) -> list[TensorEntry]:
    """The file's tensors, in the order of their bytes: without gaps, without overlaps, up to the file's end."""
    record = parse_json(text, where, offset=LENGTH_BYTES)
    if not isinstance(record, dict):
        broken(where, f"expected an object, found {shown(record)}", offset=LENGTH_BYTES)
    data = LENGTH_BYTES + len(text)
    entries = [_entry(name, each, data, where) for name, each in record.items() if name != "__metadata__"]
    entries.sort(key=lambda entry: (entry.start, entry.end))
    at = data
    for entry in entries:
        if entry.start != at:
            broken(where, f"expected tensor {entry.name[:80]!r} to begin at {at:,}, not {entry.start:,}", offset=at)
        at = entry.end
    if at != size_bytes:
        broken(where, f"expected the end of the file, which has {size_bytes:,} bytes", offset=at)
    return entries


def _entry(name: str, record: Any, data: int, where: str) -> TensorEntry:
    its = f"{where}: tensor {name[:80]!r}"
    dtype = strict_json.field(record, "dtype", str, its)
    if dtype not in ITEM_BYTES:
        broken(its, f"type {shown(dtype)} is unknown")
    shape = parse_shape(strict_json.field(record, "shape", list, its), its)
    offsets = strict_json.field(record, "data_offsets", list, its)
    if len(offsets) != 2 or not all(type(each) is int and each >= 0 for each in offsets):
        broken(its, f"data_offsets must be two numbers, found {shown(offsets)}")
    start, end = offsets
    if end - start != math.prod(shape) * ITEM_BYTES[dtype]:
        broken(its, f"expected {math.prod(shape) * ITEM_BYTES[dtype]:,} bytes, data_offsets give {end - start:,}")
    return TensorEntry(name=name, dtype=dtype, shape=shape, start=data + start, end=data + end)


def parse_shape(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(each) is int and each >= 0 for each in value):
        broken(where, f"a shape is a list of numbers, found {shown(value)}")
    if len(value) > 64 or math.prod(each or 1 for each in value) > _MOST_ELEMENTS:
        broken(where, f"impossible shape {shown(value)}")
    return tuple(value)


def parse_state(text: bytes, where: str) -> tuple[Any, list[TensorMeta]]:
    """`state.json`: the skeleton, and what tensors there must be."""
    record = parse_json(text, where)
    version = natural(record, "format", where)
    if version > FORMAT:
        broken(where, f"format {version} is newer than {FORMAT}, the newest that this version reads")
    metas = [_meta(row, where) for row in strict_json.field(record, "tensors", list, where)]
    if "skeleton" not in record:
        broken(where, "'skeleton' is missing")
    return record["skeleton"], metas


def _meta(row: Any, where: str) -> TensorMeta:
    if not isinstance(row, list) or len(row) != 5 or [type(each) for each in row] != [str, str, list, bool, bool]:
        broken(where, f"expected [name, type, shape, is pairs, is sharded], found {shown(row)}")
    name, dtype, shape, is_pairs, is_sharded = row
    if dtype not in ITEM_BYTES or (is_pairs and (dtype != "F64" or shape[-1:] != [2])):
        broken(where, f"tensor {name[:80]!r} cannot be {shown(dtype)} of shape {shown(shape)}")
    return TensorMeta(
        name=name, dtype=dtype, shape=parse_shape(shape, where), is_complex_pairs=is_pairs, is_sharded=is_sharded
    )


def parse_piece(entry: TensorEntry, meta: TensorMeta, where: str) -> Piece:
    """Which block of a sharded tensor an entry is, by its name."""
    its = f"{where}: tensor {entry.name[:80]!r}"
    text = entry.name[len(meta.name) :]
    try:
        ranges = [tuple(int(each) for each in part.split(":")) for part in text[1:-1].split(",") if part]
        piece = Piece(start=tuple(a for a, _ in ranges), shape=tuple(b - a for a, b in ranges))
    except ValueError:
        broken(its, f"expected a block, for example [0:4,0:8], of {meta.name[:80]!r}")
    inside = zip(piece.start, piece.shape, meta.shape, strict=False)
    is_inside = len(ranges) == len(meta.shape) and all(at >= 0 and 0 <= size <= of - at for at, size, of in inside)
    if piece.suffix != text or piece.shape != entry.shape or not is_inside:
        broken(its, f"expected a block of shape {list(entry.shape)} inside {list(meta.shape)}")
    return piece


def check_tiling(pieces: list[Piece], meta: TensorMeta, where: str) -> None:
    """All elements are there, each once."""
    there, expected = sum(math.prod(piece.shape) for piece in pieces), math.prod(meta.shape)
    if there != expected:
        broken(where, f"tensor {meta.name[:80]!r} has {there:,} of {expected:,} elements")
    for number, one in enumerate(pieces):
        for other in pieces[:number]:
            spans = zip(one.start, one.shape, other.start, other.shape, strict=True)
            if all(a < b + of_b and b < a + of_a for a, of_a, b, of_b in spans):
                broken(where, f"blocks {one.suffix} and {other.suffix} of {meta.name[:80]!r} overlap")
