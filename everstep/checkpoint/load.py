"""Read a checkpoint back into new memory of this process, with every byte checked.

Nothing from a file is executed. A file that does not match its manifest raises an error with the file and the place."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from everstep.checkpoint.catalog import Found, wrong_block
from everstep.checkpoint.image import Piece, TensorMeta
from everstep.checkpoint.manifest import MANIFEST, FileRecord, Manifest
from everstep.checkpoint.safetensors_header import (
    LENGTH_BYTES,
    TensorEntry,
    check_tiling,
    parse_header,
    parse_length,
    parse_piece,
    parse_state,
)
from everstep.checkpoint.state_image import DTYPES
from everstep.checkpoint.strict_json import broken, broken_text, shown
from everstep.engine.state import decode
from everstep.errors import UsageError
from everstep.storage import private_file
from everstep.storage.base import Readable, Storage

_TORCH = {name: dtype for dtype, name in DTYPES.items()}
_NUM_THREADS = min(4, os.cpu_count() or 1)
_CHECK_BYTES = 1 << 20  # checked while still in the cache


@dataclass(slots=True)
class _Open:
    """A tensor file whose head was read."""

    file: FileRecord
    path: str
    head: bytearray
    entries: list[TensorEntry]
    targets: dict[str, Tensor] = field(default_factory=dict)  # where the bytes of each entry go


def read_state(storage: Readable, manifest: Manifest) -> Any:
    """The state as it was saved, sharded tensors whole. Raises CheckpointBroken, or OSError of the storage."""
    skeleton, tensors = read_tensors(storage, manifest)
    where = f"{storage.uri}/{manifest.key.folder}/{manifest.state}"
    try:
        _check_numbers(skeleton, len(tensors))
        return decode(skeleton, tensors)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, StopIteration, RecursionError) as error:
        broken(where, f"invalid skeleton: {type(error).__name__}: {error}")


def export_pt(storage: Storage, found: Found, target: Path, *, only: str = "") -> None:
    """Write the state as torch.save does, for programs that read nothing else. `only`: one entry of the state."""
    if found.manifest is None or found.problem:
        broken_text(found.problem)
    state = read_state(storage, found.manifest)
    for key in only.split(".") if only else ():
        if not isinstance(state, dict) or key not in state:
            raise UsageError(
                f"the state has no entry {only!r}",
                hint="`everstep checkpoint show` lists the names",
                code="state-entry-unknown",
            )
        state = state[key]
    with private_file.replacing(target, mode=0o666, is_durable=True) as out:  # for others too, as umask allows
        torch.save(state, out)


def read_tensors(storage: Readable, manifest: Manifest) -> tuple[Any, list[Tensor]]:
    state = next((file for file in manifest.files if file.name == manifest.state), None)
    if state is None:
        where = f"{storage.uri}/{manifest.key.folder}/{MANIFEST}"
        broken(where, f"the state file {shown(manifest.state)} is not among its {len(manifest.files)} files")
    text = _read_small(storage, manifest, state)
    skeleton, metas = parse_state(text, f"{storage.uri}/{manifest.key.folder}/{state.name}")
    files = [_open(storage, manifest, file) for file in manifest.files if file.name.endswith(".safetensors")]
    tensors, pieces = _make_room(metas, files, storage.uri)
    with ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="everstep-load") as pool:
        blocks = [
            pool.submit(_read_block, storage, each, number) for each in files for number in range(len(each.file.crc32))
        ]
        try:
            for block in blocks:
                block.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    for whole, piece, part in pieces:
        whole[tuple(slice(at, at + size) for at, size in zip(piece.start, piece.shape, strict=True))] = part
    return skeleton, [
        torch.view_as_complex(tensor) if meta.is_complex_pairs else tensor
        for tensor, meta in zip(tensors, metas, strict=True)
    ]


def _make_room(
    metas: Sequence[TensorMeta], files: Sequence[_Open], uri: str
) -> tuple[list[Tensor], list[tuple[Tensor, Piece, Tensor]]]:
    """A new tensor for each; of sharded ones the blocks too, with their place."""
    by_name: dict[str, list[tuple[_Open, TensorEntry]]] = {}
    sharded = {meta.name for meta in metas if meta.is_sharded}
    for file in files:
        for entry in file.entries:
            base = entry.name.rpartition("[")[0]
            by_name.setdefault(base if base in sharded else entry.name, []).append((file, entry))
    tensors: list[Tensor] = []
    pieces = []
    for meta in metas:
        found = by_name.pop(meta.name, [])
        for file, entry in found:
            if entry.dtype != meta.dtype:
                broken(file.path, f"{entry.name[:80]!r} has type {entry.dtype}, expected {meta.dtype}")
        if meta.is_sharded:
            blocks = [(parse_piece(entry, meta, file.path), file, entry) for file, entry in found]
            check_tiling([piece for piece, _, _ in blocks], meta, uri)
            tensors.append(torch.empty(meta.shape, dtype=_TORCH[meta.dtype]))
            for piece, file, entry in blocks:
                file.targets[entry.name] = part = torch.empty(entry.shape, dtype=_TORCH[entry.dtype])
                pieces.append((tensors[-1], piece, part))
            continue
        if len(found) != 1:
            broken(uri, f"tensor {meta.name[:80]!r} is in {len(found)} files, expected 1")
        ((file, entry),) = found
        if entry.shape != meta.shape:
            broken(file.path, f"{meta.name[:80]!r} has shape {list(entry.shape)}, expected {list(meta.shape)}")
        tensors.append(torch.empty(meta.shape, dtype=_TORCH[meta.dtype]))
        file.targets[entry.name] = tensors[-1]
    for name, ((file, _), *_) in by_name.items():
        broken(file.path, f"tensor {name[:80]!r} is not part of the state")
    return tensors, pieces


def _open(storage: Readable, manifest: Manifest, file: FileRecord) -> _Open:
    name = f"{manifest.key.folder}/{file.name}"
    path = f"{storage.uri}/{name}"
    length = parse_length(storage.read(name, 0, LENGTH_BYTES), file.size_bytes, path)
    head = bytearray(storage.read(name, 0, LENGTH_BYTES + length))
    if len(head) != LENGTH_BYTES + length:
        broken(path, f"expected {LENGTH_BYTES + length:,} bytes of header", offset=len(head))
    entries = parse_header(bytes(head[LENGTH_BYTES:]), file.size_bytes, path)
    return _Open(file=file, path=path, head=head, entries=entries)


def _read_small(storage: Readable, manifest: Manifest, file: FileRecord) -> bytes:
    name = f"{manifest.key.folder}/{file.name}"
    data = storage.read(name)
    for number in range(len(file.crc32)):
        start = number * file.block_bytes
        actual = zlib.crc32(data[start : start + file.block_bytes])
        if actual != file.crc32[number]:
            broken_text(wrong_block(f"{storage.uri}/{name}", file, number, actual))
    if len(data) != file.size_bytes:
        broken(f"{storage.uri}/{name}", f"expected {file.size_bytes:,} bytes, found {len(data):,}")
    return data


def _read_block(storage: Readable, opened: _Open, number: int) -> None:
    file = opened.file
    start = number * file.block_bytes
    end = min(start + file.block_bytes, file.size_bytes)
    crc = 0
    name = opened.path[len(storage.uri) + 1 :]
    buffers = _buffers(opened, start, end)
    got = storage.read_into(name, start, buffers)
    for buffer in buffers:
        for at in range(0, len(buffer), _CHECK_BYTES):
            crc = zlib.crc32(buffer[at : at + _CHECK_BYTES], crc)
    if got != end - start:
        broken(opened.path, f"expected {file.size_bytes:,} bytes", offset=start + got)
    if crc != file.crc32[number]:
        broken_text(wrong_block(opened.path, file, number, crc))


def _buffers(opened: _Open, start: int, end: int) -> list[memoryview]:
    """The memory that bytes [start, end) of the file go to, in order."""
    buffers = [memoryview(opened.head)[start:end]]
    for entry in opened.entries:
        low, high = max(start, entry.start), min(end, entry.end)
        if low < high:
            raw: Any = opened.targets[entry.name].view(-1).view(torch.uint8).numpy()
            buffers.append(memoryview(raw)[low - entry.start : high - entry.start])
    return [buffer for buffer in buffers if len(buffer)]


def _check_numbers(skeleton: Any, count: int) -> None:
    if isinstance(skeleton, list):
        for item in skeleton:
            _check_numbers(item, count)
    elif isinstance(skeleton, dict):
        ((tag, content),) = skeleton.items()
        if tag not in ("tensor", "ndarray"):
            _check_numbers(content, count)
        elif type(content) is not int or not 0 <= content < count:
            raise ValueError(f"there is no tensor {shown(content)} of {count}")
