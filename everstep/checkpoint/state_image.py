"""A state, taken apart: the JSON skeleton, the tensors, and a readable name for each of them.

A tensor that occurs twice, as tied weights do, is kept once. Of a sharded one (DTensor) each worker has a piece."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from everstep.checkpoint.image import ImageLayout, Piece, TensorMeta
from everstep.engine.state import encode
from everstep.errors import UsageError

DTYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.uint16: "U16", torch.int16: "I16",
    torch.uint32: "U32", torch.int32: "I32", torch.uint64: "U64", torch.int64: "I64",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64", torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.float8_e8m0fnu: "F8_E8M0",
}  # fmt: skip
_POSITIONS = ("data", "loader", "dataloader", "sampler", "train_loader")
_POSITION_BYTES = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    skeleton: Any
    tensors: tuple[Tensor, ...]  # what this worker holds of each: plain tensors
    metas: tuple[TensorMeta, ...]


def take_apart(state: Any) -> Contents:
    """Copies nothing: the tensors are the state's own."""
    listed: list[Tensor] = []
    skeleton = encode(state, listed)
    first: dict[Any, int] = {}
    numbers = [first.setdefault(_identity(tensor, index), len(first)) for index, tensor in enumerate(listed)]
    if len(first) < len(listed):
        skeleton = _renumber(skeleton, numbers)
    once = dict(reversed(list(zip(numbers, listed, strict=True))))
    names = name_tensors(skeleton, len(first))
    parts = [describe(names[number], once[number]) for number in range(len(first))]
    return Contents(
        skeleton=skeleton, tensors=tuple(tensor for tensor, _ in parts), metas=tuple(meta for _, meta in parts)
    )


def targets(contents: Contents, layout: ImageLayout, image: memoryview) -> list[Tensor]:
    """Our share of the tensors as they will be in the image, to be copied to."""
    if not layout.slices:  # fewer tensors than workers: this one writes none
        return []
    whole = torch.frombuffer(image, dtype=torch.uint8)
    typed: dict[torch.dtype, Tensor] = {}  # the image as items of each type: one view more for a tensor, not three
    views = []
    for each in layout.slices:
        source = contents.tensors[each.index]
        if (items := typed.get(source.dtype)) is None:
            items = typed[source.dtype] = whole.view(source.dtype)
        views.append(items.as_strided(source.shape, _strides(source.shape), each.offset // source.itemsize))
    return views


def _strides(shape: Sequence[int]) -> list[int]:
    """Of a tensor of this shape that has no gaps."""
    strides = [1] * len(shape)
    for dimension in range(len(shape) - 1, 0, -1):
        strides[dimension - 1] = strides[dimension] * shape[dimension]
    return strides


def name_tensors(skeleton: Any, count: int) -> list[str]:
    """Readable and unique: the keys that lead to each tensor, as in `model.layer1.weight`."""
    names = [""] * count
    taken: set[str] = {"__metadata__"}
    for path, number in _tensors(skeleton, ()):
        if names[number]:
            continue
        name = plain = ".".join(path) or "tensor"
        again = 1
        while name in taken:
            again += 1
            name = f"{plain}~{again}"
        names[number] = name
        taken.add(name)
    return names


def position_of(state: Any) -> Any:
    """Position in the data, if an entry of the state has it: for people who read the manifest."""
    if not isinstance(state, dict):
        return None
    for name in _POSITIONS:
        value: Any = state.get(name)
        if value is None:
            continue
        own = value.state_dict() if callable(getattr(value, "state_dict", None)) else value
        try:
            text = json.dumps(own, allow_nan=False)
            if own is not None and len(text) <= _POSITION_BYTES:
                return json.loads(text)  # as the manifest's reader will see it: both must compute the same checksum
        except (TypeError, ValueError, RecursionError):
            continue
    return None


def describe(name: str, tensor: Tensor) -> tuple[Tensor, TensorMeta]:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        kind = "meta" if tensor.is_meta else "quantized" if tensor.is_quantized else str(tensor.layout)
        raise UsageError(
            f"tensor {name} is {kind}, which cannot be saved", hint="save its dense form", code="tensor-not-dense"
        )
    if _is_sharded(tensor):
        return _describe_piece(name, tensor)
    is_pairs = tensor.dtype is torch.complex128
    plain = torch.view_as_real(tensor.resolve_conj()) if is_pairs else tensor
    dtype = DTYPES.get(plain.dtype)
    if dtype is None:
        raise UsageError(
            f"tensor {name} has type {plain.dtype}, which safetensors lacks",
            hint="save it as another type",
            code="tensor-type-unknown",
        )
    return plain, TensorMeta(name=name, dtype=dtype, shape=tuple(plain.shape), is_complex_pairs=is_pairs)


def _describe_piece(name: str, tensor: Any) -> tuple[Tensor, TensorMeta]:
    """By torch's own placement rule; of replicas, the first writes."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if any(placement.is_partial() for placement in tensor.placements):
        raise UsageError(
            f"tensor {name} is a partial sum", hint="redistribute it before saving", code="tensor-partial-sum"
        )
    shape, start = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    here = tensor.device_mesh.get_coordinate()
    is_first = here is not None and all(
        at == 0 for at, placement in zip(here, tensor.placements, strict=True) if isinstance(placement, Replicate)
    )
    local, meta = describe(name, tensor.to_local())
    pairs = (2,) if meta.is_complex_pairs else ()
    piece = Piece(start=(*start, *(0 for _ in pairs)), shape=(*shape, *pairs))
    writes = is_first and local.numel() > 0
    return local, replace(meta, shape=(*tensor.shape, *pairs), is_sharded=True, piece=piece if writes else None)


def _is_sharded(tensor: Tensor) -> bool:
    return type(tensor) is not Tensor and hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def _identity(tensor: Tensor, index: int) -> Any:
    if _is_sharded(tensor) or tensor.layout is not torch.strided or tensor.is_meta or not tensor.numel():
        return index
    where = (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
    return (*where, tensor.dtype, tensor.is_conj(), tensor.is_neg())


def _renumber(skeleton: Any, numbers: list[int]) -> Any:
    if isinstance(skeleton, list):
        return [_renumber(item, numbers) for item in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    return {
        tag: numbers[content] if tag in ("tensor", "ndarray") else _renumber(content, numbers)
        for tag, content in skeleton.items()
    }


def _tensors(skeleton: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    if isinstance(skeleton, list):
        for index, item in enumerate(skeleton):
            yield from _tensors(item, (*path, str(index)))
        return
    if not isinstance(skeleton, dict):
        return
    ((tag, content),) = skeleton.items()
    if tag in ("tensor", "ndarray"):
        yield path, content
    elif tag == "tuple":
        yield from _tensors(content, path)
    elif tag == "module":
        yield from _tensors({"dict": content[0]}, path)
        yield from _tensors(content[1], (*path, "_metadata"))
    elif tag not in ("float", "bytes"):
        for key, value in content:
            yield from _tensors(value, (*path, key if isinstance(key, str) else str(key)))
