"""The tensor files of a checkpoint, which are not trusted: which bytes of which file make up each tensor.

Every number in a file's head is checked against the file before it is used. Runs without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from everstep.checkpoint.image import FORMAT, ITEM_BYTES, Piece, TensorMeta
from everstep.checkpoint.manifest import FileRecord, Manifest
from everstep.checkpoint.strict_json import broken, format_of, parse, parse_json, shown
from everstep.storage.base import Readable

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


@dataclass(frozen=True, slots=True)
class _RawEntry:
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def _entry(name: str, record: Any, data: int, where: str) -> TensorEntry:
    its = f"{where}: tensor {name[:80]!r}"
    raw: _RawEntry = parse(_RawEntry, record, its)
    _check_form(raw.dtype, raw.shape, its)
    start, end = raw.data_offsets
    if end - start != (expected := math.prod(raw.shape) * ITEM_BYTES[raw.dtype]):
        broken(its, f"expected {expected:,} bytes, data_offsets give {end - start:,}")
    return TensorEntry(name=name, dtype=raw.dtype, shape=raw.shape, start=data + start, end=data + end)


def _check_form(dtype: str, shape: tuple[int, ...], where: str) -> None:
    if dtype not in ITEM_BYTES:
        broken(where, f"type {shown(dtype)} is unknown")
    if len(shape) > 64 or math.prod(each or 1 for each in shape) > _MOST_ELEMENTS:
        broken(where, f"impossible shape {shown(shape)}")


@dataclass(frozen=True, slots=True)
class _State:
    tensors: tuple[tuple[str, str, tuple[int, ...], bool, bool], ...]  # as image.py writes them
    skeleton: Any


def parse_state(text: bytes, where: str) -> tuple[Any, list[TensorMeta]]:
    """`state.json`: the skeleton, and what tensors there must be."""
    record = parse_json(text, where)
    if (version := format_of(record, where)) > FORMAT:
        broken(where, f"format {version} is newer than {FORMAT}, the newest that this version reads")
    state: _State = parse(_State, record, where)
    metas = []
    for name, dtype, shape, is_pairs, is_sharded in state.tensors:
        its = f"{where}: tensor {name[:80]!r}"
        _check_form(dtype, shape, its)
        if is_pairs and (dtype != "F64" or shape[-1:] != (2,)):
            broken(its, f"pairs of F64 cannot be {shown(dtype)} of shape {shown(shape)}")
        metas.append(TensorMeta(name=name, dtype=dtype, shape=shape, is_complex_pairs=is_pairs, is_sharded=is_sharded))
    return state.skeleton, metas


def _piece(entry: TensorEntry, meta: TensorMeta, where: str) -> Piece:
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


def _check_tiling(pieces: list[Piece], meta: TensorMeta, where: str) -> None:
    """All elements are there, each once."""
    there, expected = sum(math.prod(piece.shape) for piece in pieces), math.prod(meta.shape)
    if there != expected:
        broken(where, f"tensor {meta.name[:80]!r} has {there:,} of {expected:,} elements")
    for number, one in enumerate(pieces):
        for other in pieces[:number]:
            spans = zip(one.start, one.shape, other.start, other.shape, strict=True)
            if all(a < b + of_b and b < a + of_a for a, of_a, b, of_b in spans):
                broken(where, f"blocks {one.suffix} and {other.suffix} of {meta.name[:80]!r} overlap")


@dataclass(slots=True)
class TensorFile:
    """A tensor file whose head was read. `path` is for people, `name` for the storage."""

    file: FileRecord
    name: str
    path: str
    head: bytearray
    entries: list[TensorEntry]


@dataclass(frozen=True, slots=True)
class TensorPart:
    """Where bytes of a tensor are, and which block of it they are."""

    file: TensorFile
    entry: TensorEntry
    piece: Piece


def open_files(storage: Readable, manifest: Manifest) -> list[TensorFile]:
    """All tensor files of a checkpoint, with their heads."""
    return [_open(storage, manifest, file) for file in manifest.files if file.name.endswith(".safetensors")]


def _open(storage: Readable, manifest: Manifest, file: FileRecord) -> TensorFile:
    name = f"{manifest.key.folder}/{file.name}"
    path = f"{storage.uri}/{name}"
    length = parse_length(storage.read(name, 0, LENGTH_BYTES), file.size_bytes, path)
    head = bytearray(storage.read(name, 0, LENGTH_BYTES + length))
    if len(head) != LENGTH_BYTES + length:
        broken(path, f"expected {LENGTH_BYTES + length:,} bytes of header", offset=len(head))
    entries = parse_header(bytes(head[LENGTH_BYTES:]), file.size_bytes, path)
    return TensorFile(file=file, name=name, path=path, head=head, entries=entries)


def locate(metas: Sequence[TensorMeta], files: Sequence[TensorFile], uri: str) -> list[list[TensorPart]]:
    """For each tensor the parts that make it up: one, or the blocks of a sharded one. No entry is left over."""
    by_name: dict[str, list[tuple[TensorFile, TensorEntry]]] = {}
    sharded = {meta.name for meta in metas if meta.is_sharded}
    for file in files:
        for entry in file.entries:
            base = entry.name.rpartition("[")[0]
            by_name.setdefault(base if base in sharded else entry.name, []).append((file, entry))
    located = [_parts(meta, by_name.pop(meta.name, []), uri) for meta in metas]
    for name, ((file, _), *_) in by_name.items():
        broken(file.path, f"tensor {name[:80]!r} is not part of the state")
    return located


def _parts(meta: TensorMeta, found: Sequence[tuple[TensorFile, TensorEntry]], uri: str) -> list[TensorPart]:
    for file, entry in found:
        if entry.dtype != meta.dtype:
            broken(file.path, f"{entry.name[:80]!r} has type {entry.dtype}, expected {meta.dtype}")
        if not meta.is_sharded and entry.shape != meta.shape:
            broken(file.path, f"{meta.name[:80]!r} has shape {list(entry.shape)}, expected {list(meta.shape)}")
    if meta.is_sharded:
        parts = [TensorPart(file, entry, _piece(entry, meta, file.path)) for file, entry in found]
        _check_tiling([part.piece for part in parts], meta, uri)
        return parts
    if len(found) != 1:
        broken(uri, f"tensor {meta.name[:80]!r} is in {len(found)} files, expected 1")
    return [TensorPart(*found[0], Piece(start=(0,) * len(meta.shape), shape=meta.shape))]
