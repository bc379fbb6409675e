"""State as a JSON skeleton plus tensors: what can be sent, checked and loaded without running anybody's code.

`encode` takes any nesting of dicts, lists and tuples with tensors, numbers, strings, bytes and None, and objects that
have a state_dict; what it cannot carry is an error that names the place. `checksum` is fast enough to be free beside
the copy."""

from __future__ import annotations

import base64
import collections
import hashlib
import json
import random
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from everstep.errors import UsageError

_ROW_BYTES = 64 << 10


def encode(value: Any, tensors: list[Tensor], where: str = "state") -> Any:
    """A JSON value in which every tensor is a number into `tensors`; containers that JSON lacks are tagged."""
    num_before = len(tensors)
    try:
        return _encode(value, tensors)
    except UsageError:
        del tensors[num_before:]
        return _encode_slowly(value, tensors, where)


def _encode(value: Any, tensors: list[Tensor]) -> Any:
    """Without the place, which costs as much as all the rest."""
    kind = type(value)
    if kind is int or kind is str or kind is bool or value is None or (kind is float and value - value == 0.0):
        return value
    if kind is Tensor:
        tensors.append(value.detach() if value.requires_grad else value)
        return {"tensor": len(tensors) - 1}
    if kind is dict or kind is collections.OrderedDict:
        items = [[k if type(k) is str else _encode(k, tensors), _encode(v, tensors)] for k, v in value.items()]
        if (metadata := getattr(value, "_metadata", None)) is not None:  # of a module: the version of each part
            return {"module": [items, _encode(metadata, tensors)]}
        return {_DICTS[kind]: items}
    if kind is list:
        return [_encode(item, tensors) for item in value]
    return _encode_slowly(value, tensors, "state")


def _encode_slowly(value: Any, tensors: list[Tensor], where: str) -> Any:
    """The same, and an error says where."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Tensor):
        tensors.append(value.detach())
        return {"tensor": len(tensors) - 1}
    if type(value) in (int, float):
        return value if value == value and abs(value) != float("inf") else {"float": repr(value)}
    if isinstance(value, list):
        return [_encode_slowly(item, tensors, f"{where}[{i}]") for i, item in enumerate(value)]
    if type(value) is tuple:
        return {"tuple": [_encode_slowly(item, tensors, f"{where}[{i}]") for i, item in enumerate(value)]}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if type(value) in _DICTS:
        items = [
            [_encode_slowly(k, tensors, f"{where} key {k!r}"), _encode_slowly(v, tensors, f"{where}[{k!r}]")]
            for k, v in value.items()
        ]
        if (metadata := getattr(value, "_metadata", None)) is not None:  # of a module: the version of each part
            return {"module": [items, _encode_slowly(metadata, tensors, f"{where}._metadata")]}
        return {_DICTS[type(value)]: items}
    if (tagged := _numpy_value(value, tensors, where)) is not None:
        return tagged
    if (own := own_state(value)) is not None:
        return _encode_slowly(own, tensors, where)
    raise UsageError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which cannot be sent as plain data",
        hint="keep tensors, numbers, strings, lists, tuples and dicts in a state_dict",
        code="state-not-plain",
    )


_DICTS: dict[type, str] = {dict: "dict", collections.OrderedDict: "ordered", collections.Counter: "counter"}


def _numpy_value(value: Any, tensors: list[Tensor], where: str) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, numpy.generic):
        return encode(value.item(), tensors, where)
    if isinstance(value, numpy.ndarray) and value.dtype != object and not hasattr(value, "mask"):
        try:
            tensors.append(torch.from_numpy(value.copy()))
        except (TypeError, ValueError) as error:  # ValueError: of another byte order
            raise UsageError(
                f"{where} is a numpy array of {value.dtype}: {error}",
                hint="keep it as numbers",
                code="state-array-not-plain",
            ) from error
        return {"ndarray": len(tensors) - 1}
    return None


def own_state(value: Any) -> Any:
    """Of modules, optimizers, loaders and random generators: what they give to be loaded again."""
    if callable(own := getattr(value, "state_dict", None)):
        return own()
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, random.Random):
        return value.getstate()
    if (bits := getattr(value, "bit_generator", None)) is not None:  # numpy.random.Generator
        return bits.state
    return None


def decode(value: Any, tensors: Sequence[Tensor]) -> Any:
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    if tag == "tensor":
        return tensors[content]
    if tag == "ndarray":
        return tensors[content].numpy()
    if tag == "float":
        return float(content)
    if tag == "tuple":
        return tuple(decode(item, tensors) for item in content)
    if tag == "bytes":
        return base64.b64decode(content)
    if tag == "module":
        items, metadata = content
        state = decode({"ordered": items}, tensors)
        state._metadata = decode(metadata, tensors)
        return state
    pairs = [(decode(k, tensors), decode(v, tensors)) for k, v in content]
    kind = next(kind for kind, name in _DICTS.items() if name == tag)
    return kind(dict(pairs))


def as_bytes(tensor: Tensor) -> Tensor:
    """The tensor's memory as bytes; a contiguous CPU tensor is not copied."""
    plain = tensor.detach().contiguous().reshape(-1)
    return plain.view(torch.uint8) if plain.numel() else torch.empty(0, dtype=torch.uint8)


def tensor_sum(tensor: Tensor) -> bytes:
    """One sum per 64 KiB, as 64-bit words, hashed with the tensor's type and shape.

    Any single flipped bit changes a sum; sums are taken at the speed of memory."""
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    raw = as_bytes(tensor)
    whole = raw.numel() // 8 * 8
    words = raw[:whole].view(torch.int64) if raw.data_ptr() % 8 == 0 else raw[:whole].clone().view(torch.int64)
    rows = words.numel() // (_ROW_BYTES // 8)
    per_row = words[: rows * (_ROW_BYTES // 8)].view(rows, _ROW_BYTES // 8).sum(dim=1)
    for part in (per_row, words[rows * (_ROW_BYTES // 8) :], raw[whole:]):
        digest.update(part.cpu().numpy().tobytes())
    return digest.digest()


def checksum(skeleton: Any, sums: Iterable[bytes]) -> str:
    """Of a whole state: the skeleton, and the sums of its tensors in order."""
    digest = hashlib.sha256(json.dumps(skeleton, separators=(",", ":")).encode())
    for each in sums:
        digest.update(each)
    return digest.hexdigest()
