"""One file out of a checkpoint: all its tensors as one .safetensors file, copied piece by piece, without torch.

The checkpoint is verified first; the file appears under its name when it is complete."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from everstep.checkpoint.catalog import verify
from everstep.checkpoint.image import ITEM_BYTES, Piece, TensorMeta, safetensors_head
from everstep.checkpoint.manifest import Manifest
from everstep.checkpoint.policy import Found
from everstep.checkpoint.strict_json import broken_text
from everstep.checkpoint.tensor_files import TensorPart, locate, open_files, parse_state
from everstep.errors import UsageError
from everstep.storage import private_file
from everstep.storage.base import Storage

_COPY_BYTES = 16 << 20


def export_safetensors(storage: Storage, found: Found, target: Path, *, only: str = "") -> int:
    """Returns the number of tensors. `only`: those whose names begin with it, without it."""
    for problem in verify(storage, found):
        broken_text(problem)
    assert found.manifest is not None
    metas = read_metas(storage, found.manifest)
    parts = dict(zip(metas, locate(metas, open_files(storage, found.manifest), storage.uri), strict=True))
    chosen = _choose(metas, only)
    head = safetensors_head([replace(meta, name=name, is_sharded=False) for name, meta in chosen])
    with private_file.replacing(target, mode=0o666, is_durable=True) as out:  # for others too, as umask allows
        out.write(head)
        at = len(head)
        for _, meta in chosen:
            for part in parts[meta]:
                _copy(storage, part, meta, out.fileno(), at)
            at += math.prod(meta.shape) * ITEM_BYTES[meta.dtype]
        out.flush()
        os.ftruncate(out.fileno(), at)
    return len(chosen)


def read_metas(storage: Storage, manifest: Manifest) -> list[TensorMeta]:
    """The tensors of a checkpoint, as its `state.json` lists them."""
    name = f"{manifest.key.folder}/{manifest.state}"
    return parse_state(storage.read(name), f"{storage.uri}/{name}")[1]


def _choose(metas: list[TensorMeta], only: str) -> list[tuple[str, TensorMeta]]:
    prefix = f"{only}." if only else ""
    chosen = [(meta.name[len(prefix) :], meta) for meta in metas if meta.name.startswith(prefix)]
    if only and not chosen:
        tops = ", ".join(sorted({meta.name.split(".")[0] for meta in metas})[:20])
        raise UsageError(
            f"no tensor's name begins with {prefix!r}", hint=f"names begin with: {tops}", code="tensor-prefix-unknown"
        )
    # Wide types first, so that each tensor begins at a multiple of its item's size.
    return sorted(chosen, key=lambda pair: -ITEM_BYTES[pair[1].dtype])


def _copy(storage: Storage, part: TensorPart, meta: TensorMeta, out: int, at: int) -> None:
    for source, target, size in runs(part.piece, meta.shape, ITEM_BYTES[meta.dtype]):
        for done in range(0, size, _COPY_BYTES):
            data = storage.read(part.file.name, part.entry.start + source + done, min(_COPY_BYTES, size - done))
            os.pwrite(out, data, at + target + done)


def runs(piece: Piece, shape: tuple[int, ...], item_bytes: int) -> Iterator[tuple[int, int, int]]:
    """The contiguous stretches of a block in the whole tensor: offset in the block, in the whole, bytes."""
    if not math.prod(piece.shape):
        return
    inner = len(shape)  # from here on, the block is as wide as the whole
    while inner > 0 and piece.shape[inner - 1] == shape[inner - 1]:
        inner -= 1
    outer = max(inner - 1, 0)  # and this dimension may be cut
    strides = [math.prod(shape[dim + 1 :]) * item_bytes for dim in range(len(shape))]
    size = math.prod(piece.shape[outer:]) * item_bytes
    for number, index in enumerate(itertools.product(*(range(each) for each in piece.shape[:outer]))):
        places = [*(a + b for a, b in zip(piece.start, index, strict=False)), *piece.start[outer:]]
        yield number * size, sum(place * stride for place, stride in zip(places, strides, strict=True)), size
