"""Read a checkpoint back into new memory of this process, with every byte checked.

Nothing from a file is executed. A file that does not match its manifest raises an error with the file and the place."""

from __future__ import annotations

import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from everstep.checkpoint.catalog import wrong_block
from everstep.checkpoint.manifest import MANIFEST, FileRecord, Manifest, checksum
from everstep.checkpoint.policy import Found
from everstep.checkpoint.state_image import DTYPES
from everstep.checkpoint.strict_json import broken, broken_text, shown
from everstep.checkpoint.tensor_files import TensorFile, locate, open_files, parse_state
from everstep.engine.state import decode
from everstep.errors import UsageError
from everstep.storage import private_file
from everstep.storage.base import Readable, Storage

_TORCH = {name: dtype for dtype, name in DTYPES.items()}
_NUM_THREADS = min(4, os.cpu_count() or 1)
_CHECK_BYTES = 1 << 20  # checked while still in the cache


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
    files = open_files(storage, manifest)
    tensors, targets, pieces = [], dict[int, Tensor](), []
    for meta, parts in zip(metas, locate(metas, files, storage.uri), strict=True):
        tensors.append(torch.empty(meta.shape, dtype=_TORCH[meta.dtype]))
        for part in parts:
            target = torch.empty(part.piece.shape, dtype=_TORCH[meta.dtype]) if meta.is_sharded else tensors[-1]
            targets[id(part.entry)] = target
            if meta.is_sharded:
                pieces.append((tensors[-1], part.piece, target))
    with ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="everstep-load") as pool:
        blocks = [
            pool.submit(_read_block, storage, each, number, targets)
            for each in files
            for number in range(len(each.file.crc32))
        ]
        try:
            for block in blocks:
                block.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    for whole, piece, target in pieces:
        whole[tuple(slice(at, at + size) for at, size in zip(piece.start, piece.shape, strict=True))] = target
    return skeleton, [
        torch.view_as_complex(tensor) if meta.is_complex_pairs else tensor
        for tensor, meta in zip(tensors, metas, strict=True)
    ]


def _read_small(storage: Readable, manifest: Manifest, file: FileRecord) -> bytes:
    name = f"{manifest.key.folder}/{file.name}"
    data = storage.read(name)
    for number, expected in enumerate(file.crc32):
        start = number * file.block_bytes
        if (actual := checksum(data[start : start + file.block_bytes])) != expected:
            broken_text(wrong_block(f"{storage.uri}/{name}", file, number, actual))
    if len(data) != file.size_bytes:
        broken(f"{storage.uri}/{name}", f"expected {file.size_bytes:,} bytes, found {len(data):,}")
    return data


def _read_block(storage: Readable, opened: TensorFile, number: int, targets: dict[int, Tensor]) -> None:
    file = opened.file
    start = number * file.block_bytes
    end = min(start + file.block_bytes, file.size_bytes)
    crc = 0
    buffers = _buffers(opened, start, end, targets)
    got = storage.read_into(opened.name, start, buffers)
    for buffer in buffers:
        for at in range(0, len(buffer), _CHECK_BYTES):
            crc = zlib.crc32(buffer[at : at + _CHECK_BYTES], crc)
    if got != end - start:
        broken(opened.path, f"expected {file.size_bytes:,} bytes", offset=start + got)
    if f"{crc:08x}" != file.crc32[number]:
        broken_text(wrong_block(opened.path, file, number, f"{crc:08x}"))


def _buffers(opened: TensorFile, start: int, end: int, targets: dict[int, Tensor]) -> list[memoryview]:
    """The memory that bytes [start, end) of the file go to, in order."""
    buffers = [memoryview(opened.head)[start:end]]
    for entry in opened.entries:
        low, high = max(start, entry.start), min(end, entry.end)
        if low < high:
            raw: Any = targets[id(entry)].view(-1).view(torch.uint8).numpy()
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
