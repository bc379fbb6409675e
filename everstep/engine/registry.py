"""Everything that a worker's state consists of, by name: models, optimizers, schedulers, whatever has a state_dict."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from everstep.errors import StateMismatch, UsageError


class Registry:
    def __init__(self) -> None:
        self._objects: dict[str, Any] = {}

    def add(self, name: str, thing: Any) -> None:
        if any(thing is known for known in self._objects.values()):
            return
        if name in self._objects:
            raise UsageError(
                f"two objects are registered as {name!r}", hint="give each a unique name", code="registered-name-taken"
            )
        if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
            raise UsageError(
                f"{name} is a {type(thing).__name__} without state_dict() and load_state_dict()",
                hint="register models, optimizers, schedulers, or an object with these two methods",
                code="registered-without-state-dict",
            )
        self._objects[name] = thing

    @property
    def modules(self) -> list[nn.Module]:
        return [thing for thing in self._objects.values() if isinstance(thing, nn.Module)]

    def state(self) -> dict[str, Any]:
        """Contains tensors that change only at a commit as they are, and copies of the models' buffers, which change in
        each forward pass."""
        return {
            name: _frozen(_module_state(o)) if isinstance(o, nn.Module) else o.state_dict()
            for name, o in self._objects.items()
        }

    def load(self, state: dict[str, Any]) -> None:
        if set(state) != set(self._objects):
            raise StateMismatch(
                f"the state has {sorted(state)}, this worker {sorted(self._objects)}", code="registered-objects-differ"
            )
        for name, thing in self._objects.items():
            if isinstance(thing, nn.Module):
                _load_module(thing, state[name])
            else:
                thing.load_state_dict(state[name])


def _module_state(module: nn.Module) -> dict[str, dict[str, Tensor]]:
    """Parameters and all buffers, also those that a state_dict leaves out: a peer must be the same in everything."""
    return {"parameters": dict(module.named_parameters()), "buffers": dict(module.named_buffers())}


def _frozen(state: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    return {**state, "buffers": {name: buffer.clone() for name, buffer in state["buffers"].items()}}


def _load_module(module: nn.Module, state: dict[str, Any]) -> None:
    own = _module_state(module)
    with torch.no_grad():
        for kind, tensors in own.items():
            if set(tensors) != set(state[kind]):
                raise StateMismatch(
                    f"{kind} differ: {sorted(set(tensors) ^ set(state[kind]))}", code="registered-tensors-differ"
                )
            for name, tensor in tensors.items():
                tensor.copy_(state[kind][name])
