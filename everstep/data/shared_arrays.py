"""A value whose arrays and tensors lie in an anonymous file: every process that maps it has the same pages.

The file holds a description as JSON, then the arrays. A mapping is private: a process that changes an array in place
gets its own copy of the pages that it changes, and no other process sees it. No pickle: what is neither an array, nor a
tensor, nor plain data is refused."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any

from everstep.errors import UsageError

_HEAD = struct.Struct("<8sQ")  # magic, bytes of the description
_MAGIC = b"evrdata1"
_ALIGN, _PAGE = 64, 4096
_PLAIN = (type(None), bool, int, float, str)
_ARRAY_KINDS = "biufcSUmM"  # numpy's, without objects and records
_MOST_DEEP = 100
_ADD_SEALS, _SEALS = 1033, 0x1 | 0x2 | 0x4 | 0x8  # of fcntl: no further seals, no other size, no writing
_PIECE_BYTES = 1 << 30  # a write is cut at 2 GB

Source = Callable[[], memoryview]


def write(value: Any) -> int:
    """The descriptor of a new file with the value. UsageError: it has something that cannot be shared."""
    parts = _Parts()
    skeleton = parts.take_apart(value, "the value", 0)
    text = json.dumps({"skeleton": skeleton, "arrays": parts.arrays}).encode()
    descriptor = os.memfd_create("everstep-data", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        base = _base(len(text))
        os.ftruncate(descriptor, base + parts.size_bytes)
        _put(descriptor, memoryview(_HEAD.pack(_MAGIC, len(text)) + text), 0)
        for array, source in zip(parts.arrays, parts.sources, strict=True):
            _put(descriptor, source(), base + array["offset"])
        fcntl.fcntl(descriptor, _ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read(descriptor: int) -> Any:
    """The value, on a mapping of the file that lives as long as its arrays."""
    size = os.fstat(descriptor).st_size
    memory = mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    magic, text_bytes = _HEAD.unpack_from(memory)
    assert magic == _MAGIC
    told = json.loads(memory[_HEAD.size : _HEAD.size + text_bytes])
    base = _base(text_bytes)
    arrays = [_read_array(memory, base, each) for each in told["arrays"]]
    return _put_together(told["skeleton"], arrays)


def _base(text_bytes: int) -> int:
    return -(-(_HEAD.size + text_bytes) // _PAGE) * _PAGE


def _put(descriptor: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done : done + _PIECE_BYTES], offset + done)


class _Parts:
    """The arrays of a value. One that is there several times is stored once."""

    def __init__(self) -> None:
        self.arrays: list[dict[str, Any]] = []
        self.sources: list[Source] = []
        self.size_bytes = 0
        self._known: dict[int, int] = {}

    def take_apart(self, value: Any, place: str, depth: int) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if depth > _MOST_DEEP:
            raise _refused(place, f"is nested more than {_MOST_DEEP} levels deep", "return a flat tuple or dict")
        if kind is list or kind is tuple:
            parts = [self.take_apart(each, f"{place}[{at}]", depth + 1) for at, each in enumerate(value)]
            return {kind.__name__: parts}
        if kind is dict:
            return {"dict": [self._item(name, each, place, depth) for name, each in value.items()]}
        if kind is bytes:
            return {"bytes": self._add(value, {"kind": "bytes"}, len(value), lambda: memoryview(value))}
        if _is_of(value, "numpy", "ndarray"):
            return {"array": self._add_array(value, place)}
        if _is_of(value, "numpy", "generic"):
            return {"scalar": self._add_array(_numpy().asarray(value), place)}
        if _is_of(value, "torch", "Tensor"):
            return {"array": self._add_tensor(value, place)}
        name = f"{kind.__module__}.{kind.__qualname__}"
        hint = (
            "return the arrays or tensors that it is made of, in tuples, lists and dicts, and make it from them in "
            "each trial"
        )
        raise _refused(place, f"is a {name}", hint)

    def _item(self, name: Any, value: Any, place: str, depth: int) -> list[Any]:
        if type(name) not in _PLAIN:
            raise _refused(place, f"has a key of type {type(name).__name__}", "use texts and numbers as keys")
        return [name, self.take_apart(value, f"{place}[{name!r}]", depth + 1)]

    def _add_array(self, array: Any, place: str) -> int:
        numpy = _numpy()
        if array.dtype.kind not in _ARRAY_KINDS or isinstance(array, numpy.ma.MaskedArray):
            what = "a masked array" if isinstance(array, numpy.ma.MaskedArray) else f"an array of {array.dtype}"
            raise _refused(place, f"is {what}", "return arrays of numbers or texts of fixed length")
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        facts = {"kind": "array", "dtype": array.dtype.str, "shape": list(array.shape), "order": order}

        def source() -> memoryview:
            flat = numpy.asarray(array, order=order).reshape(-1, order=order)
            return memoryview(flat.view(numpy.uint8)) if flat.size else memoryview(b"")

        return self._add(array, facts, array.nbytes, source)

    def _add_tensor(self, tensor: Any, place: str) -> int:
        torch = sys.modules["torch"]
        problem = _tensor_problem(tensor)
        if problem:
            raise _refused(place, *problem)
        # As torch's own clone: dense strides are kept, others become those of a contiguous tensor.
        strides = torch.empty_like(tensor, device="meta", memory_format=torch.preserve_format).stride()
        facts = {
            "kind": "tensor",
            "dtype": str(tensor.dtype).partition(".")[2],
            "shape": list(tensor.shape),
            "strides": list(strides),
        }

        def source() -> memoryview:
            dense = tensor if tensor.stride() == strides else tensor.contiguous()
            flat = dense.as_strided((tensor.numel(),), (1,)).contiguous()
            return memoryview(flat.view(torch.uint8).numpy()) if tensor.numel() else memoryview(b"")

        return self._add(tensor, facts, tensor.numel() * tensor.element_size(), source)

    def _add(self, value: Any, facts: Mapping[str, Any], size_bytes: int, source: Source) -> int:
        if (known := self._known.get(id(value))) is not None:
            return known
        self.arrays.append({**facts, "offset": self.size_bytes, "bytes": size_bytes})
        self.sources.append(source)
        align = _PAGE if size_bytes >= _PAGE else _ALIGN  # a page belongs to one large array
        self.size_bytes = -(-(self.size_bytes + size_bytes) // align) * align
        return self._known.setdefault(id(value), len(self.arrays) - 1)


def _tensor_problem(tensor: Any) -> tuple[str, str] | None:
    torch = sys.modules["torch"]
    if type(tensor) is not torch.Tensor:
        return f"is a {type(tensor).__module__}.{type(tensor).__qualname__}", "return plain tensors"
    if tensor.device.type != "cpu":
        return f"is on {tensor.device}", "return tensors in host memory, and move them in each trial"
    if tensor.requires_grad:
        return "requires gradients", "return tensor.detach()"
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return "is not a plain dense tensor", "return dense tensors, such as tensor.to_dense() or tensor.resolve_conj()"
    return None


def _read_array(memory: mmap.mmap, base: int, facts: Mapping[str, Any]) -> Any:
    start, size = base + facts["offset"], facts["bytes"]
    if facts["kind"] == "bytes":
        return memory[start : start + size]
    if facts["kind"] == "array":
        numpy = _numpy()
        dtype, shape = numpy.dtype(facts["dtype"]), tuple(facts["shape"])
        if not size:
            return numpy.empty(shape, dtype=dtype, order=facts["order"])
        return numpy.ndarray(shape, dtype=dtype, buffer=memory, offset=start, order=facts["order"])
    import torch

    dtype = getattr(torch, facts["dtype"])
    if not size:
        return torch.empty(facts["shape"], dtype=dtype)
    flat = torch.frombuffer(memory, dtype=dtype, count=size // dtype.itemsize, offset=start)
    return flat.as_strided(facts["shape"], facts["strides"])


def _put_together(skeleton: Any, arrays: list[Any]) -> Any:
    if not isinstance(skeleton, dict):
        return skeleton
    ((kind, content),) = skeleton.items()
    if kind == "list":
        return [_put_together(each, arrays) for each in content]
    if kind == "tuple":
        return tuple(_put_together(each, arrays) for each in content)
    if kind == "dict":
        return {name: _put_together(each, arrays) for name, each in content}
    return arrays[content][()] if kind == "scalar" else arrays[content]


def _is_of(value: Any, module: str, name: str) -> bool:
    """Without importing it: a value of a module that is not there does not exist."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)


def _numpy() -> Any:
    import numpy

    return numpy


def _refused(place: str, what: str, hint: str) -> UsageError:
    return UsageError(f"once_per_node cannot share {place}: it {what}", hint=hint, code="data-not-shareable")
