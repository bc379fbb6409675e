"""The script's own collectives: a default group that follows the world, and a value that all agree on."""

from __future__ import annotations

from typing import Any

import torch

from everstep.engine import process_engine
from everstep.errors import UsageError

_FOR_CUDA = {  # what torch's spellings mean for CUDA tensors
    None: None,
    "gloo": "gloo",
    "nccl": "nccl",
    "cpu:gloo": None,
    "cpu:gloo,cuda:gloo": "gloo",
    "cpu:gloo,cuda:nccl": "nccl",
}


def init_process_group(backend: str | None = None, **torch_arguments: Any) -> None:
    """Form torch.distributed's default group as one that follows the world; takes torch's arguments.

    Who the workers are is decided by the coordinator, so `rank`, `world_size`, `init_method` and `store` are not
    needed and not used. Without `everstep run` the world is this process alone.

    backend: how CUDA tensors travel, both in your own collectives and as gradients: "nccl", "gloo", or by device, as in
    "cpu:gloo,cuda:nccl". CPU tensors always travel over gloo. For gradients, ElasticTrainer(backend=…) takes
    precedence. Default: EVERSTEP_BACKEND, otherwise "auto"."""
    if backend not in _FOR_CUDA:
        raise UsageError(
            f"backend={backend!r} is not supported",
            hint='use "gloo", "nccl", or "cpu:gloo,cuda:nccl"',
            code="backend-cannot-follow",
        )
    process_engine.follow_world(backend=_FOR_CUDA[backend])


def reduce(value: float | torch.Tensor, *, weight: float = 1.0) -> float:
    """The weighted mean of a value over all workers, the same on all of them; a peer's death is not an error."""
    return process_engine.current().reduce(float(value), weight)
