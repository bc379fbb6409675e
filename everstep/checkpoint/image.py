"""A checkpoint's image: the exact bytes of its files, one after another in a buffer, and where everything is in it.

A worker copies tensors into the slices that a layout names; a writer needs only the buffer and its description. Each
file except `state.json` is a safetensors file, and each begins at a multiple of PAGE_BYTES.
Pure. Knows nothing of torch, of storage or of time."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from everstep.checkpoint.manifest import Manifest, to_record
from everstep.checkpoint.strict_json import parse, parse_json
from everstep.errors import UsageError

PAGE_BYTES = 4096
FILE_BYTES = 4 << 30  # a share larger than this is split over files, between tensors
STATE_FILE = "state.json"
FORMAT = 1

ITEM_BYTES = {  # the types of safetensors
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip

_HEAD_ALIGN = 64  # tensors begin at a cache line of the file, and of the buffer


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A block of a sharded tensor: where it begins in each dimension, and its shape."""

    start: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def suffix(self) -> str:
        """The suffix of the tensor's name: `[0:128,0:64]`."""
        return f"[{','.join(f'{at}:{at + size}' for at, size in zip(self.start, self.shape, strict=True))}]"


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorMeta:
    """A tensor as safetensors knows it; complex128, which it lacks, is kept as pairs of F64.

    A replicated tensor is written by the worker whose share it is in, a sharded one by all, each its piece; None: this
    worker writes nothing of it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    is_complex_pairs: bool = False
    is_sharded: bool = False
    piece: Piece | None = None

    @property
    def size_bytes(self) -> int:
        """Of what this worker holds."""
        return math.prod(self.written_shape) * ITEM_BYTES[self.dtype]

    @property
    def written_shape(self) -> tuple[int, ...]:
        if not self.is_sharded:
            return self.shape
        return self.piece.shape if self.piece is not None else (0,)

    @property
    def written_name(self) -> str:
        return f"{self.name}{self.piece.suffix}" if self.piece is not None else self.name


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageShare:
    """The part of a replicated state that this worker writes."""

    rank: int = 0
    size: int = 1


WHOLE = ImageShare()


@dataclass(frozen=True, kw_only=True, slots=True)
class FileLayout:
    name: str
    offset: int  # in the buffer
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """Where the bytes of a tensor go: [offset, offset + size_bytes) of the buffer."""

    index: int  # of the tensor, as given to lay_out
    offset: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageLayout:
    """This worker's files, one after another. `size_bytes`: of the buffer that holds them."""

    share: ImageShare
    files: tuple[FileLayout, ...]
    heads: tuple[bytes, ...]  # the first bytes of each file, all of state.json
    slices: tuple[Slice, ...]  # of our share, in the order of the tensors
    size_bytes: int
    digest: str  # of all tensors' names, types and shapes: workers that differ in it must not share a checkpoint

    def describe(self, manifest: Manifest) -> Description:
        return Description(share=self.share, files=self.files, digest=self.digest, manifest=manifest)


def lay_out(
    skeleton: Any, tensors: Sequence[TensorMeta], share: ImageShare = WHOLE, *, file_bytes: int = FILE_BYTES
) -> ImageLayout:
    """Our share of a state's files. The first share also holds `state.json`: the skeleton and the list of all tensors.

    The same arguments give the same layout on every worker, so each knows what the others write."""
    _check_names(tensors)
    files: list[FileLayout] = []
    heads: list[bytes] = []
    slices: list[Slice] = []
    offset = 0
    if share.rank == 0:
        heads.append(_state_text(skeleton, tensors))
        files.append(FileLayout(name=STATE_FILE, offset=0, size_bytes=len(heads[0])))
        offset = _aligned(len(heads[0]), PAGE_BYTES)
    for number, group in enumerate(_groups(tensors, _ours(tensors, share), file_bytes)):
        # Wide types first: safetensors allows no gaps, and each tensor must begin at a multiple of its item's size.
        order = sorted(group, key=lambda index: -ITEM_BYTES[tensors[index].dtype])
        heads.append(safetensors_head([tensors[index] for index in order]))
        at = offset + len(heads[-1])
        for index in order:
            slices.append(Slice(index=index, offset=at, size_bytes=tensors[index].size_bytes))
            at += tensors[index].size_bytes
        name = f"part-{share.rank:05d}-of-{share.size:05d}-{number:03d}.safetensors"
        files.append(FileLayout(name=name, offset=offset, size_bytes=at - offset))
        offset = _aligned(at, PAGE_BYTES)
    slices.sort(key=lambda each: each.index)
    return ImageLayout(
        share=share,
        files=tuple(files),
        heads=tuple(heads),
        slices=tuple(slices),
        size_bytes=offset,
        digest=_digest(tensors),
    )


def lay_out_again(layout: ImageLayout, skeleton: Any, tensors: Sequence[TensorMeta]) -> ImageLayout:
    """The layout of the same tensors with another skeleton, in a fraction of the time."""
    if layout.share.rank > 0:
        return layout
    text = _state_text(skeleton, tensors)
    shift = _aligned(len(text), PAGE_BYTES) - _aligned(layout.files[0].size_bytes, PAGE_BYTES)
    state, heads = replace(layout.files[0], size_bytes=len(text)), (text, *layout.heads[1:])
    if shift == 0:
        return replace(layout, files=(state, *layout.files[1:]), heads=heads)
    return replace(
        layout,
        files=(state, *(replace(file, offset=file.offset + shift) for file in layout.files[1:])),
        heads=heads,
        slices=tuple(replace(each, offset=each.offset + shift) for each in layout.slices),
        size_bytes=layout.size_bytes + shift,
    )


def put_heads(layout: ImageLayout, image: memoryview) -> None:
    """Copy into the buffer all that is not a tensor."""
    for file, head in zip(layout.files, layout.heads, strict=True):
        image[file.offset : file.offset + len(head)] = head


def safetensors_head(tensors: Sequence[TensorMeta]) -> bytes:
    """The head of a safetensors file that holds these tensors in this order."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for tensor in tensors:
        end = start + tensor.size_bytes
        shape = list(tensor.written_shape)
        entries[tensor.written_name] = {"dtype": tensor.dtype, "shape": shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _HEAD_ALIGN)
    return len(text).to_bytes(8, "little") + text


def share_of(tensors: Sequence[TensorMeta], num_shares: int) -> list[int]:
    """The owner of each tensor: runs of about equal bytes. Tensors are not cut: each file is plain safetensors."""
    sizes = [0 if each.is_sharded else each.size_bytes for each in tensors]
    total, before, owners = sum(sizes), 0, []
    for size in sizes:
        owners.append(min((2 * before + size) * num_shares // (2 * total), num_shares - 1) if total else 0)
        before += size
    return owners


def _ours(tensors: Sequence[TensorMeta], share: ImageShare) -> list[int]:
    owners = share_of(tensors, share.size)
    return [
        index
        for index, each in enumerate(tensors)
        if (each.piece is not None if each.is_sharded else owners[index] == share.rank)
    ]


def _groups(tensors: Sequence[TensorMeta], ours: Sequence[int], file_bytes: int) -> list[list[int]]:
    groups: list[list[int]] = []
    room = 0
    for index in ours:
        if not groups or tensors[index].size_bytes > room:
            groups.append([])
            room = file_bytes
        groups[-1].append(index)
        room -= tensors[index].size_bytes
    return groups


def _state_text(skeleton: Any, tensors: Sequence[TensorMeta]) -> bytes:
    rows = [[each.name, each.dtype, list(each.shape), each.is_complex_pairs, each.is_sharded] for each in tensors]
    return json.dumps({"format": FORMAT, "tensors": rows, "skeleton": skeleton}, separators=(",", ":")).encode()


def _digest(tensors: Sequence[TensorMeta]) -> str:
    text = json.dumps([[each.name, each.dtype, each.shape] for each in tensors])
    return hashlib.sha256(text.encode()).hexdigest()


def _check_names(tensors: Sequence[TensorMeta]) -> None:
    if len({each.name for each in tensors}) != len(tensors):
        seen: set[str] = set()
        twice = next(each.name for each in tensors if each.name in seen or seen.add(each.name))  # type: ignore[func-returns-value]
        raise UsageError(
            f"two tensors are named {twice!r}",
            hint="give each tensor of a checkpoint its own name",
            code="tensor-name-twice",
        )


def _aligned(size: int, to: int) -> int:
    return -(-size // to) * to


@dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """What a writer needs besides the image itself."""

    share: ImageShare
    files: tuple[FileLayout, ...]
    digest: str
    manifest: Manifest


def pack(description: Description) -> bytes:
    record = asdict(description) | {"manifest": to_record(description.manifest)}
    return json.dumps(record, separators=(",", ":")).encode()


def unpack(text: bytes) -> Description:
    """CheckpointBroken if it is damaged."""
    where = "the description of a state in memory"
    description: Description = parse(Description, parse_json(text, where), where)
    return description
