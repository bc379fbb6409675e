"""The gate: parameters do not change while they are being copied.

torch.optim's optimizers are the ones who change parameters and their own state, and they say so before they do: a hook
of ours, called before every step, waits for the copies under way. So tensors of optimizers that have stepped since, or
that were handed over, may be copied late; all others may change at any time and are copied at once. What changes a
parameter in place without an optimizer is noticed by torch's version counters, except through `.data`.

One gate for the process: it is hung when the first Checkpointer is made."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

_NUM_LOOKS = 3  # an optimizer has all its state after its first steps

Place = tuple[int, int]  # address, which no two devices share, and bytes


class Copying(Protocol):
    """A copy under way."""

    def wait_for_change(self) -> None:
        """Until the sources may change."""


class Gate:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._restless: set[Place] = set()
        self._copies: list[Copying] = []
        self._listeners: list[weakref.WeakMethod[Callable[[int], None]]] = []
        self._num_looks: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._is_hung = False

    def hang(self) -> None:
        """Begin to watch. Once and for all: hooks that do nothing cost a microsecond a step."""
        with self._lock:
            if self._is_hung:
                return
            self._is_hung = True
        os.register_at_fork(after_in_child=self._forget_copies)
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)

    def meet(self, thing: Any) -> None:
        """It was handed over to be saved."""
        if isinstance(thing, Optimizer):
            self._optimizers.add(thing)
        elif isinstance(thing, nn.Module) and thing not in self._modules:
            self._modules.add(thing)
            thing.register_load_state_dict_pre_hook(lambda *_: self.pass_through())

    def tell_size(self, listener: Callable[[int], None]) -> None:
        """Tell this method, as soon as it is known, how many bytes parameters and optimizers have."""
        self._listeners.append(weakref.WeakMethod(listener))

    def steady(self) -> set[Place]:
        """What changes only after our hook was called."""
        found = {place_of(tensor) for optimizer in list(self._optimizers) for tensor in _tensors_of(optimizer)}
        return found - self._restless

    def distrust(self, tensors: Iterable[Tensor]) -> None:
        """These have changed without the hook: never again are they copied late."""
        self._restless.update(place_of(tensor) for tensor in tensors)

    def hold(self, copy: Copying) -> None:
        with self._lock:
            self._copies.append(copy)

    def let_go(self, copy: Copying) -> None:
        with self._lock:
            self._copies = [each for each in self._copies if each is not copy]

    def pass_through(self) -> None:
        """Somebody is about to change parameters."""
        for copy in self._copies:
            copy.wait_for_change()

    def _forget_copies(self) -> None:
        """In a fork nobody copies, and memory is its own."""
        self._lock = threading.Lock()
        self._copies = []

    @torch._disable_dynamo
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._copies:
            self.pass_through()

    @torch._disable_dynamo
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        num_looks = self._num_looks.get(optimizer, 0)
        if num_looks >= _NUM_LOOKS:
            return
        self._num_looks[optimizer] = num_looks + 1
        self._optimizers.add(optimizer)
        size = sum(tensor.nbytes for each in list(self._optimizers) for tensor in _tensors_of(each))
        for reference in self._listeners:
            if (listener := reference()) is not None:
                listener(size)


GATE = Gate()


def place_of(tensor: Tensor) -> Place:
    return tensor.data_ptr(), tensor.nbytes


def _tensors_of(optimizer: Optimizer) -> list[Tensor]:
    """Parameters and state. A step that is replayed as a CUDA graph calls no hook: then none."""
    if any(group.get("capturable") for group in optimizer.param_groups):
        return []
    tensors = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for state in optimizer.state.values():
        if isinstance(state, dict):
            tensors += [value for value in state.values() if isinstance(value, Tensor)]
    return [tensor for tensor in tensors if _is_plain(tensor)]


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided and not tensor.is_inference()
