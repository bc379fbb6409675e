"""The gate: parameters do not change while they are being copied.

torch.optim's optimizers change parameters and their own state, and call hooks before they do: our hook, called before
every step, waits for the copies under way. So tensors of optimizers that have stepped since, or that were handed over,
may be copied late; all others may change at any time and are copied at once. torch's version counters notice in-place
changes of a parameter without an optimizer, except through `.data`.

One gate for the process: it is hung when the first Checkpointer is made."""

from __future__ import annotations

import functools
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence, Set
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

if TYPE_CHECKING:
    from everstep.checkpoint.copier import Copy

_NUM_LOOKS = 3  # an optimizer has all its state after its first steps

_PLAIN = (Tensor, nn.Parameter)

Extent = tuple[int, int]  # address, which no two devices share, and bytes


class Steady:
    """Tensors by identity, and parameters also by their memory: a state_dict has other tensors on it. Asking a tensor
    for its memory takes longer than everything else a save does with it, so it is done only when needed."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tensors  # kept: their ids must not be reused
        self.ids = set(map(id, tensors))

    @functools.cached_property
    def places(self) -> Set[Extent]:
        return {place_of(tensor) for tensor in self.tensors if type(tensor) is nn.Parameter}


class CopyGate:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._restless: set[Extent] = set()
        self._copies: list[Copy] = []
        self._listeners: list[weakref.WeakMethod[Callable[[int], None]]] = []
        self._num_looks: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._known: weakref.WeakKeyDictionary[Optimizer, list[weakref.ref[Tensor]]] = weakref.WeakKeyDictionary()
        self._is_hung = False

    def hang(self) -> None:
        """Begin to watch, once per process: hooks that do nothing cost a microsecond a step."""
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
            thing.register_load_state_dict_pre_hook(_BeforeLoad())

    def tell_size(self, listener: Callable[[int], None]) -> None:
        """Call this method with the size in bytes of parameters and optimizers, as soon as it is known."""
        self._listeners.append(weakref.WeakMethod(listener))

    def steady(self) -> Steady:
        """Tensors that change only after our hook was called."""
        tensors = [tensor for optimizer in list(self._optimizers) for tensor in self._tensors_of(optimizer)]
        if self._restless:
            tensors = [tensor for tensor in tensors if place_of(tensor) not in self._restless]
        return Steady(tensors)

    def distrust(self, tensors: Iterable[Tensor]) -> None:
        """These have changed without the hook: they are not copied late again."""
        self._restless.update(place_of(tensor) for tensor in tensors)

    def hold(self, copy: Copy) -> None:
        with self._lock:
            self._copies.append(copy)

    def release(self, copy: Copy) -> None:
        with self._lock:
            self._copies = [each for each in self._copies if each is not copy]

    def pass_through(self) -> None:
        """Wait: parameters are about to change."""
        for copy in self._copies:
            copy.wait_for_change()

    def _tensors_of(self, optimizer: Optimizer) -> list[Tensor]:
        """As the function below. Each tensor is examined once: they are the same from save to save."""
        values = _values_of(optimizer)
        known = self._known.get(optimizer, [])
        if len(known) == len(values) and all(
            reference() is value for reference, value in zip(known, values, strict=True)
        ):
            return values
        tensors = _tensors_of(optimizer)
        if len(tensors) == len(values):
            self._known[optimizer] = [weakref.ref(tensor) for tensor in tensors]
        return tensors

    def _forget_copies(self) -> None:
        """A fork has no copies under way and its own memory."""
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


GATE = CopyGate()


class _BeforeLoad:
    """A hook of a user's module. Copied or pickled with it, it does nothing and needs no Everstep to do so."""

    def __call__(self, *_: Any) -> None:
        GATE.pass_through()

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial, (itertools.chain,)  # takes any arguments and ignores them


def place_of(tensor: Tensor) -> Extent:
    return tensor.data_ptr(), tensor.nbytes


def _tensors_of(optimizer: Optimizer) -> list[Tensor]:
    """Parameters and state that are plain tensors."""
    strided = torch.strided
    return [
        each
        for each in _values_of(optimizer)
        if type(each) in _PLAIN and each.layout is strided and not each.is_inference()
    ]


def _values_of(optimizer: Optimizer) -> list[Any]:
    """Parameters and state; empty where steps may be replayed as a CUDA graph, which calls no hook."""
    if any(group.get("capturable") for group in optimizer.param_groups):
        return []
    values = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for state in optimizer.state.values():
        if isinstance(state, dict):
            values += state.values()
    return values
