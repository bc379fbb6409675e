"""Take each micro-batch's gradients out of backward, weighted, into the engine's own buffers.

A hook on every parameter moves `.grad` into the micro-batch's target and clears it, so what the user sees between
micro-batches is None, and after the sum the mean over all micro-batches. Buckets become ready in the order in
which backward fills them; parameters that got no gradient count as zero, and as unused. Collectives never see
`.grad`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.autograd.function import BackwardCFunction

from everstep.engine.buckets import BucketLayout, Flats
from everstep.engine.leaf_sums import Fold, Target
from everstep.engine.pulse import union
from everstep.errors import UsageError


@dataclass(kw_only=True, slots=True)
class _OpenMicroBatch:
    target: Target
    weight: float
    is_last: bool
    seen: bytearray  # by parameter: it got a gradient in this micro-batch
    counted: bytearray  # the same, in the backward that ends the micro-batch
    missing: list[int]  # by bucket: parameters without a gradient in this micro-batch
    is_bucket_done: list[bool] = field(default_factory=list)
    streams: dict[int, torch.cuda.Stream] = field(default_factory=dict)  # those that its gradients were taken on
    is_callback_queued: bool = False
    is_nested: bool = False  # gradients came from a backward inside the backward, whose end is not the micro-batch's
    is_complete: bool = False


@dataclass(kw_only=True, slots=True)
class _Ghost:
    """A body that is run for its optimizer.step() alone."""

    is_callback_queued: bool = False
    is_nested: bool = False


class Gradients:
    """The gradients of one worker's micro-batches. `on_ready(bucket)` speaks during the last micro-batch."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        layout: BucketLayout,
        fold: Fold,
        on_ready: Callable[[int], None],
        on_backward_end: Callable[[], None],
    ) -> None:
        self.parameters = list(parameters)
        self.ids = frozenset(map(id, parameters))
        self.layout = layout
        self.fold = fold
        self.is_accumulating = False  # inside no_sync(): this backward is not the micro-batch's last
        self.used: dict[int, bytes] = {}  # by held micro-batch: which parameters got a gradient
        self._on_ready = on_ready
        self._on_backward_end = on_backward_end
        self._micro_batch: _OpenMicroBatch | None = None
        self._ghost: _Ghost | None = None
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._take, number))
            for number, parameter in enumerate(self.parameters)
        ]

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def begin(self, micro_batch: int, weight: float, *, is_last: bool) -> Target:
        target = self.fold.begin(micro_batch)
        self.clear_user_gradients()
        self._micro_batch = _OpenMicroBatch(
            target=target,
            weight=weight,
            is_last=is_last,
            seen=bytearray(len(self.parameters)),
            counted=bytearray(len(self.parameters)),
            missing=[len(bucket.entries) for bucket in self.layout.buckets],
            is_bucket_done=[False] * len(self.layout.buckets),
        )
        return target

    def begin_ghost(self) -> None:
        """A micro-batch whose gradients are thrown away."""
        self.clear_user_gradients()
        self._ghost = _Ghost()

    def add_nothing(self, micro_batch: int) -> None:
        """A micro-batch without samples."""
        self.begin(micro_batch, 0.0, is_last=False)
        self.complete()
        self.end()

    def complete(self) -> None:
        """The micro-batch's backward is over: what got no gradient is zero; all buckets are done."""
        micro_batch = self._micro_batch
        if micro_batch is None or micro_batch.is_complete:
            return
        micro_batch.is_complete = True
        for number, view in enumerate(micro_batch.target.flats.views):
            if not micro_batch.seen[number]:
                _put(view, None, micro_batch.weight, micro_batch.target.is_sum, self.fold.is_exact)
        for bucket in range(len(self.layout.buckets)):
            self._finish_bucket(micro_batch, bucket)
        self.fold.done(micro_batch.target)
        self.used[micro_batch.target.leaf] = (
            bytes(micro_batch.seen) if micro_batch.weight else bytes(len(micro_batch.seen))
        )
        self.used = {number: self.used[number] for number in self.fold.held}

    def end(self) -> None:
        self._micro_batch = self._ghost = None

    def abandon(self) -> None:
        """The micro-batch broke off: the sum it was being added to is spoiled."""
        micro_batch, self._micro_batch = self._micro_batch, None
        self._ghost = None
        if micro_batch is not None and not micro_batch.is_complete:
            self.fold.drop(micro_batch.target)
            self.used = {number: self.used[number] for number in self.fold.held}
        self.clear_user_gradients()

    def clear(self) -> None:
        self.fold.clear()
        self.used.clear()

    def rename(self, micro_batches: Sequence[int]) -> None:
        """The held micro-batches get these numbers."""
        self.used = dict(zip(micro_batches, (self.used[micro_batch] for micro_batch in self.fold.held), strict=True))
        self.fold.rename(micro_batches)

    def clear_user_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def give_user_gradients(self, result: Flats, used: Sequence[int | bool]) -> None:
        for number, parameter in enumerate(self.parameters):
            parameter.grad = result.views[number].to(parameter.dtype) if used[number] else None

    def used_parameters(self) -> bytes:
        """Which parameters any held micro-batch used."""
        return union(self.used.values()) if self.used else bytes(len(self.parameters))

    def _take(self, number: int, parameter: Tensor) -> None:
        micro_batch = self._micro_batch
        if self._ghost is not None:
            parameter.grad = None
            self._queue_callback(self._ghost)
            return
        if micro_batch is None:
            raise UsageError(
                "backward() outside of a step: its gradients would be this worker's own, not the mean over all",
                hint="put forward and backward inside `with trainer.step():`",
                code="backward-outside-step",
            )
        if micro_batch.is_complete:
            raise UsageError(
                "a second backward() in one micro-batch after its gradients were complete",
                hint="add the losses before backward(), or run all but the last inside `with model.no_sync():`",
                code="backward-after-complete",
            )
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None
        if gradient.is_cuda and torch.cuda.is_current_stream_capturing():
            raise UsageError(
                "backward() is captured in a CUDA graph, and a replayed graph does not say when gradients are complete",
                hint="use torch.cuda.make_graphed_callables or torch.compile instead",
                code="backward-captured",
            )
        if gradient.is_sparse:
            raise UsageError("sparse gradients cannot be summed", hint="use sparse=False", code="gradient-sparse")
        if gradient.is_cuda:
            stream = torch.cuda.current_stream(gradient.device)
            micro_batch.streams[stream.cuda_stream] = stream
        bucket = self.layout.bucket_of[number]
        if micro_batch.is_bucket_done[bucket]:
            raise UsageError(
                f"a parameter of shape {list(parameter.shape)} got a second gradient in one backward, after its first "
                "was sent to the others: it is used by several segments of reentrant activation checkpointing",
                hint="torch.utils.checkpoint.checkpoint(…, use_reentrant=False)",
                code="gradient-after-sent",
            )
        again = micro_batch.target.is_sum or bool(micro_batch.seen[number])
        view = micro_batch.target.flats.views[number]
        _put(view, _plain(gradient, view.dtype), micro_batch.weight, again, self.fold.is_exact)
        micro_batch.seen[number] = 1
        if self.is_accumulating:
            return
        self._queue_callback(micro_batch)
        micro_batch.missing[bucket] -= not micro_batch.counted[number]
        micro_batch.counted[number] = 1
        if micro_batch.missing[bucket] == 0:
            self._finish_bucket(micro_batch, bucket)

    def _queue_callback(self, micro_batch: _OpenMicroBatch | _Ghost) -> None:
        """At the end of the whole backward. A gradient from a backward inside it cannot tell where that is."""
        if micro_batch.is_callback_queued or self.is_accumulating:
            return
        if _is_in_inner_backward():
            micro_batch.is_nested = True
        else:
            micro_batch.is_callback_queued = True
            Variable._execution_engine.queue_callback(self._backward_ended)

    def check_ended(self) -> None:
        """Before the sum is awaited by anything but the end of backward."""
        micro_batch = self._micro_batch or self._ghost
        if micro_batch is not None and micro_batch.is_nested and not micro_batch.is_callback_queued:
            raise UsageError(
                "all gradients came from segments of reentrant activation checkpointing, whose ends are not that of "
                "backward: what you did with gradients since then, such as clipping, had no effect",
                hint="torch.utils.checkpoint.checkpoint(…, use_reentrant=False), or for models of transformers "
                'gradient_checkpointing_kwargs={"use_reentrant": False}',
                code="backward-end-unknown",
            )

    def _finish_bucket(self, micro_batch: _OpenMicroBatch, bucket: int) -> None:
        if micro_batch.is_bucket_done[bucket]:
            return
        micro_batch.is_bucket_done[bucket] = True
        _gather_streams(micro_batch.streams)
        for left, right in micro_batch.target.carries:
            left.buffers[bucket].add_(right.buffers[bucket])
        if micro_batch.is_last:
            self._on_ready(bucket)

    def _backward_ended(self, *_: Any) -> None:
        if self._micro_batch is None and self._ghost is None:
            return
        self.complete()
        self._on_backward_end()


def _is_in_inner_backward() -> bool:
    """Whether a function's own backward has called backward(), which has called the hook that asks."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code is not BackwardCFunction.apply.__code__:
        frame = frame.f_back
    return frame is not None


def _gather_streams(streams: Mapping[int, torch.cuda.Stream]) -> None:
    """A model may run on several streams. Work queued on the current stream from now on follows what was taken."""
    if len(streams) > 1:
        current = torch.cuda.current_stream(next(iter(streams.values())).device)
        for stream in streams.values():
            current.wait_stream(stream)


def _plain(gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """Detached, and of this type. Runs for each parameter in each step, and usually has nothing to do."""
    if gradient.requires_grad:
        gradient = gradient.detach()
    return gradient if gradient.dtype == dtype else gradient.to(dtype)


def _put(view: Tensor, gradient: Tensor | None, weight: float, is_sum: bool, is_exact: bool) -> None:
    """view (+)= weight * gradient. Exact: the product is rounded before it is added, on any worker."""
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
