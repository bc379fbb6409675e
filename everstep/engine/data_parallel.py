"""torch's wrapper, in name and surface, around a model whose gradients the engine sums."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from everstep.engine.step import Engine
from everstep.errors import UsageError


class DistributedDataParallel(nn.Module):
    """The gradients are summed by the trainer's engine.

    Arguments that tune torch's reducer are accepted and have no effect: our buckets need none of them."""

    def __init__(
        self,
        module: nn.Module,
        device_ids: list[int] | None = None,
        output_device: int | None = None,
        dim: int = 0,
        broadcast_buffers: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
    ) -> None:
        super().__init__()
        if process_group is not None:
            raise UsageError(
                "a subgroup cannot follow the world", hint="leave process_group out", code="subgroup-given"
            )
        if device_ids is not None and len(device_ids) > 1:
            raise UsageError(f"device_ids={device_ids}", hint="start a worker per device", code="several-device-ids")
        self.module = module
        self._engine: Engine | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._engine is None and self.training and torch.is_grad_enabled():
            raise UsageError(
                "this model is not bound to a trainer: its gradients would stay this worker's own",
                hint="pass it to everstep.ElasticTrainer(model) and train inside `with trainer.step():`",
                code="model-not-bound",
            )
        return self.module(*args, **kwargs)

    def bind(self, engine: Engine) -> None:
        self._engine = engine

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """A backward inside adds to the micro-batch's gradients without ending the micro-batch."""
        if self._engine is None:
            yield
        else:
            with self._engine.work.accumulating():
                yield


def unwrap(model: nn.Module, engine: Engine) -> nn.Module:
    """The model itself. Around it, torch's wrapper may stay: its reducer is put to rest, the engine sums."""
    if isinstance(model, DistributedDataParallel):
        model.bind(engine)
        return model.module
    if isinstance(model, TorchDDP):
        model.require_backward_grad_sync = model.require_forward_param_sync = False
        model.broadcast_buffers = False
        module: nn.Module = model.module
        return module
    return model


def is_classic(model: nn.Module) -> bool:
    """torch's own wrapper: its process group cannot follow the world, so a loss restarts all workers."""
    return isinstance(model, TorchDDP)
