"""Take each leaf's gradients out of backward, weighted, into the engine's own buffers.

A hook on every parameter moves `.grad` into the leaf's target and clears it, so what the user sees between leaves
is no gradient, and after the sum the mean over all leaves. Buckets become ready in the order in which backward
fills them; parameters that got no gradient count as zero, and as unused. Collectives never see `.grad`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.autograd.function import BackwardCFunction

from everstep.engine.buckets import Flats, Layout
from everstep.engine.leaf_sums import Fold, Target
from everstep.engine.pulse import union
from everstep.errors import UsageError


@dataclass(kw_only=True, slots=True)
class _Leaf:
    target: Target
    weight: float
    is_last: bool
    seen: bytearray  # by parameter: it got a gradient in this leaf
    counted: bytearray  # the same, in the backward that ends the leaf
    missing: list[int]  # by bucket: parameters without a gradient in this leaf
    is_bucket_done: list[bool] = field(default_factory=list)
    is_callback_queued: bool = False
    is_nested: bool = False  # gradients came from a backward inside the backward, whose end is not the leaf's
    is_complete: bool = False


@dataclass(kw_only=True, slots=True)
class _Ghost:
    """A body that is run for its optimizer.step() alone."""

    is_callback_queued: bool = False
    is_nested: bool = False


class Gradients:
    """The gradients of one worker's leaves. `on_ready(bucket)` speaks during the last leaf."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        layout: Layout,
        fold: Fold,
        on_ready: Callable[[int], None],
        on_backward_end: Callable[[], None],
    ) -> None:
        self.parameters = list(parameters)
        self.ids = frozenset(map(id, parameters))
        self.layout = layout
        self.fold = fold
        self.is_accumulating = False  # inside no_sync(): this backward is not the leaf's last
        self.used: dict[int, bytes] = {}  # by held leaf: which parameters got a gradient
        self._on_ready = on_ready
        self._on_backward_end = on_backward_end
        self._leaf: _Leaf | None = None
        self._ghost: _Ghost | None = None
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._hook(number))
            for number, parameter in enumerate(self.parameters)
        ]

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def begin(self, leaf: int, weight: float, *, is_last: bool) -> Target:
        target = self.fold.begin(leaf)
        self.clear_user_gradients()
        self._leaf = _Leaf(
            target=target,
            weight=weight,
            is_last=is_last,
            seen=bytearray(len(self.parameters)),
            counted=bytearray(len(self.parameters)),
            missing=[len(bucket.slots) for bucket in self.layout.buckets],
            is_bucket_done=[False] * len(self.layout.buckets),
        )
        return target

    def begin_ghost(self) -> None:
        """A leaf whose gradients are thrown away."""
        self.clear_user_gradients()
        self._ghost = _Ghost()

    def add_nothing(self, leaf: int) -> None:
        """A leaf without samples."""
        self.begin(leaf, 0.0, is_last=False)
        self.complete()
        self.end()

    def complete(self) -> None:
        """The leaf's backward is over: what got no gradient is zero; all buckets are done."""
        leaf = self._leaf
        if leaf is None or leaf.is_complete:
            return
        leaf.is_complete = True
        for number, view in enumerate(leaf.target.flats.views):
            if not leaf.seen[number]:
                _put(view, None, leaf.weight, leaf.target.is_sum, self.fold.is_exact)
        for bucket in range(len(self.layout.buckets)):
            self._finish_bucket(leaf, bucket)
        self.fold.done(leaf.target)
        self.used[leaf.target.leaf] = bytes(leaf.seen) if leaf.weight else bytes(len(leaf.seen))
        self.used = {number: self.used[number] for number in self.fold.held}

    def end(self) -> None:
        self._leaf = self._ghost = None

    def abandon(self) -> None:
        """The leaf broke off: whatever it was being added to is spoilt."""
        leaf, self._leaf = self._leaf, None
        self._ghost = None
        if leaf is not None and not leaf.is_complete:
            self.fold.drop(leaf.target)
            self.used = {number: self.used[number] for number in self.fold.held}
        self.clear_user_gradients()

    def clear(self) -> None:
        self.fold.clear()
        self.used.clear()

    def rename(self, leaves: Sequence[int]) -> None:
        """The held leaves are called otherwise from now on."""
        self.used = dict(zip(leaves, (self.used[leaf] for leaf in self.fold.held), strict=True))
        self.fold.rename(leaves)

    def clear_user_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def give_user_gradients(self, result: Flats, used: Sequence[int | bool]) -> None:
        for number, parameter in enumerate(self.parameters):
            parameter.grad = result.views[number].to(parameter.dtype) if used[number] else None

    def used_parameters(self) -> bytes:
        """Which parameters any held leaf used."""
        return union(self.used.values()) if self.used else bytes(len(self.parameters))

    def _hook(self, number: int) -> Callable[[Tensor], None]:
        def on_gradient(parameter: Tensor) -> None:
            self._take(number, parameter)

        return on_gradient

    def _take(self, number: int, parameter: Tensor) -> None:
        leaf = self._leaf
        if self._ghost is not None:
            parameter.grad = None
            self._queue_callback(self._ghost)
            return
        if leaf is None:
            raise UsageError(
                "backward() outside of a step: its gradients would be this worker's own, not the mean over all",
                hint="put forward and backward inside `with trainer.step():`",
            )
        if leaf.is_complete:
            raise UsageError(
                "a second backward() in one leaf after its gradients were complete",
                hint="add the losses before backward(), or run all but the last inside `with model.no_sync():`",
            )
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None
        if gradient.is_sparse:
            raise UsageError("sparse gradients cannot be summed in fixed buckets", hint="use sparse=False")
        bucket = self.layout.bucket_of[number]
        if leaf.is_bucket_done[bucket]:
            raise UsageError(
                f"a parameter of shape {list(parameter.shape)} got a second gradient in one backward, after its first "
                "was sent to the others: it is used by several segments of reentrant activation checkpointing",
                hint="torch.utils.checkpoint.checkpoint(…, use_reentrant=False)",
            )
        again = leaf.target.is_sum or bool(leaf.seen[number])
        view = leaf.target.flats.views[number]
        _put(view, gradient.detach().to(view.dtype), leaf.weight, again, self.fold.is_exact)
        leaf.seen[number] = 1
        if self.is_accumulating:
            return
        self._queue_callback(leaf)
        leaf.missing[bucket] -= not leaf.counted[number]
        leaf.counted[number] = 1
        if leaf.missing[bucket] == 0:
            self._finish_bucket(leaf, bucket)

    def _queue_callback(self, leaf: _Leaf | _Ghost) -> None:
        """At the end of the whole backward. A gradient from a backward inside it cannot tell where that is."""
        if leaf.is_callback_queued or self.is_accumulating:
            return
        if _is_in_inner_backward():
            leaf.is_nested = True
        else:
            leaf.is_callback_queued = True
            Variable._execution_engine.queue_callback(self._backward_ended)

    def check_ended(self) -> None:
        """Before the sum is awaited by anything but the end of backward."""
        leaf = self._leaf or self._ghost
        if leaf is not None and leaf.is_nested and not leaf.is_callback_queued:
            raise UsageError(
                "all gradients came from segments of reentrant activation checkpointing, whose ends are not that of "
                "backward: what you did with gradients since then, such as clipping, had no effect",
                hint="torch.utils.checkpoint.checkpoint(…, use_reentrant=False), or for models of transformers "
                'gradient_checkpointing_kwargs={"use_reentrant": False}',
            )

    def _finish_bucket(self, leaf: _Leaf, bucket: int) -> None:
        if leaf.is_bucket_done[bucket]:
            return
        leaf.is_bucket_done[bucket] = True
        for left, right in leaf.target.carries:
            left.buffers[bucket].add_(right.buffers[bucket])
        if leaf.is_last:
            self._on_ready(bucket)

    def _backward_ended(self, *_: Any) -> None:
        if self._leaf is None and self._ghost is None:
            return
        self.complete()
        self._on_backward_end()


def _is_in_inner_backward() -> bool:
    """Whether a function's own backward has called backward(), which has called the hook that asks."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code is not BackwardCFunction.apply.__code__:
        frame = frame.f_back
    return frame is not None


def _put(view: Tensor, gradient: Tensor | None, weight: float, is_sum: bool, is_exact: bool) -> None:
    """view (+)= weight * gradient. Exact: the product is rounded before it is added, whoever adds it."""
    if gradient is None or weight == 0:
        # Adding zero is not nothing: it turns -0.0 into 0.0, and must do so for every number of workers.
        view.add_(0.0) if is_sum else view.zero_()
    elif not is_sum:
        view.copy_(gradient) if weight == 1 else torch.mul(gradient, weight, out=view)
    elif weight == 1:
        view.add_(gradient)
    elif is_exact:
        view.add_(gradient * weight)
    else:
        view.add_(gradient, alpha=weight)
