"""The part of a save that runs at once: walk the state, keep tensors that the gate protects, clone all others.

The result is independent of the state: containers are copied, plain values cannot change, tensors are the state's own
where the gate protects them (copy_gate.py) and clones elsewhere. A value that cannot be saved is an error at once."""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from everstep.checkpoint.copy_gate import GATE, Extent
from everstep.checkpoint.state_image import DTYPES, describe, take_apart
from everstep.engine.state import encode, own_state
from everstep.errors import UsageError

CLONED_BYTES = 64 << 20  # more than this of tensors that may change is not copied twice: the save waits instead

_ATOMS = {int, float, bool, str, bytes, type(None)}
_PLAIN_TENSORS = {Tensor, nn.Parameter}


@dataclass(frozen=True, kw_only=True, slots=True)
class StateSnapshot:
    """`value` is the state at the time of the snapshot, as long as the gate is closed for it."""

    value: Any
    late: Sequence[Tensor]  # the state's own, still to be copied …
    versions: Sequence[int]  # … if these are still their versions afterwards
    is_in_haste: bool  # some tensors may change as soon as training continues
    is_sharded: bool
    key: tuple[Any, ...]  # equal for states that differ in tensors and plain values alone
    events: Sequence[torch.cuda.Event]  # the work that GPUs had until then


def take(state: Any) -> StateSnapshot:
    survey = _Survey()
    try:
        value = survey.walk(state)
    except UsageError:
        take_apart(state)  # raises the same error with the place
        raise
    except RecursionError:
        raise UsageError(
            "the state is nested too deeply", hint="does it contain itself?", code="state-nested-too-deeply"
        ) from None
    return StateSnapshot(
        value=value,
        late=survey.late,
        versions=[tensor._version for tensor in survey.late],
        is_in_haste=survey.is_in_haste,
        is_sharded=survey.is_sharded,
        key=tuple(survey.key),
        events=[torch.cuda.current_stream(device).record_event() for device in survey.devices],
    )


class _Survey:
    def __init__(self) -> None:
        self._steady = GATE.steady()
        self._seen: dict[Extent, tuple[Tensor, Tensor]] = {}  # tied tensors stay tied
        self._cloned_bytes = 0
        self._has_gpu = torch.cuda.is_initialized()
        self.late: list[Tensor] = []
        self.key: list[Any] = []
        self.devices: set[torch.device] = set()
        self.is_in_haste = self.is_sharded = False

    def walk(self, value: Any) -> Any:
        kind = type(value)
        if kind in _ATOMS:
            return value
        if kind is dict or kind is OrderedDict or kind is Counter:
            return self._walk_dict(value, kind)
        if kind is tuple or isinstance(value, list):
            self.key.append((kind, len(value)))
            items = [item if type(item) in _ATOMS else self.walk(item) for item in value]
            return tuple(items) if kind is tuple else items
        if isinstance(value, Tensor):
            return self._walk_tensor(value)
        if _is_array(value):
            self.key.append((str(value.dtype), value.shape))
            encode(sys.modules["numpy"].empty(0, value.dtype), [])
            return value.copy()
        GATE.meet(value)
        if (own := _own_state(value)) is not None:
            return self.walk(own)
        encode(value, [])  # an error if it cannot be carried
        return value

    def _walk_dict(self, value: Any, kind: type) -> Any:
        self.key.append(tuple(value))
        if not _ATOMS.issuperset(map(type, value)):
            for name in value:
                _check_key(name)
        copied = kind()
        steady = self._steady.ids
        for name, item in value.items():
            its = type(item)
            if its in _ATOMS:
                copied[name] = item
            elif id(item) in steady:
                copied[name] = self._keep(item)
            elif its in _PLAIN_TENSORS:
                copied[name] = self._walk_tensor(item)
            else:
                copied[name] = self._walk_dict(item, dict) if its is dict else self.walk(item)
        if kind is not dict and (metadata := getattr(value, "_metadata", None)) is not None:  # never changed in place
            copied._metadata = metadata
        return copied

    def _walk_tensor(self, tensor: Tensor) -> Tensor:
        if id(tensor) in self._steady.ids:
            return self._keep(tensor)
        is_odd = type(tensor) not in _PLAIN_TENSORS or tensor.layout is not torch.strided or tensor.is_meta
        if is_odd or tensor.dtype not in DTYPES:
            return self._walk_odd_tensor(tensor)
        place = tensor.data_ptr(), tensor.nbytes
        if place in self._steady.places:
            return self._keep(tensor)
        seen = self._seen.get(place)
        if seen is not None and _is_same(seen[0], tensor):
            return seen[1]
        kept = self._set_aside(tensor)
        if place[1]:
            self._seen[place] = (tensor, kept)
        return kept

    def _keep(self, tensor: Tensor) -> Tensor:
        """Copy it late."""
        kept = tensor.detach() if tensor.requires_grad else tensor  # `parameter.data = …` gives it other memory
        self.late.append(kept)
        if self._has_gpu:
            self._note_device(tensor)
        return kept

    def _walk_odd_tensor(self, tensor: Tensor) -> Tensor:
        _, meta = describe("state", tensor)
        self.is_sharded = self.is_sharded or meta.is_sharded
        return self._set_aside(tensor)

    def _note_device(self, tensor: Tensor) -> None:
        if tensor.is_cuda:
            self.devices.add(tensor.device)

    def _set_aside(self, tensor: Tensor) -> Tensor:
        self._note_device(tensor)
        self._cloned_bytes += tensor.nbytes
        self.is_in_haste = self.is_in_haste or self._cloned_bytes > CLONED_BYTES
        return tensor if self.is_in_haste else tensor.detach().clone()


def _own_state(value: Any) -> Any:
    """Of a module with its parameters themselves: the gate knows those, not their detached views."""
    if isinstance(value, nn.Module) and type(value).state_dict is nn.Module.state_dict:
        return value.state_dict(keep_vars=True)
    return own_state(value)


def _check_key(key: Any) -> None:
    tensors: list[Tensor] = []
    encode(key, tensors)
    if tensors:
        raise UsageError(
            "a tensor is the key of a dict",
            hint="no other tensor will ever be equal to it: use a name",
            code="tensor-as-key",
        )


def _is_same(one: Tensor, other: Tensor) -> bool:
    is_same_view = one.shape == other.shape and one.stride() == other.stride() and one.dtype == other.dtype
    return is_same_view and one.is_conj() == other.is_conj() and one.is_neg() == other.is_neg()


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray):
        return False
    return value.dtype != object and not hasattr(value, "mask")
