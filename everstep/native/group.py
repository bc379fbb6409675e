"""The script's own collectives: a default group that follows the world, and a value that all agree on."""

from __future__ import annotations

from typing import Any

import torch

from everstep.engine import process_engine
from everstep.errors import UsageError


def init_process_group(backend: str | None = None, **torch_arguments: Any) -> None:
    """Form torch.distributed's default group as one that follows the world; takes torch's arguments.

    Who the workers are is decided by the coordinator, so `rank`, `world_size`, `init_method` and `store` are not
    needed and not used. Without `everstep run` the world is this process alone."""
    if backend not in (None, "gloo", "nccl", "cpu:gloo", "cpu:gloo,cuda:gloo", "cpu:gloo,cuda:nccl"):
        raise UsageError(
            f"backend={backend!r} cannot follow the world", hint="use gloo or nccl", code="backend-cannot-follow"
        )
    process_engine.follow_world(wants_nccl=backend is not None and backend.endswith("nccl"))


def reduce(value: float | torch.Tensor, *, weight: float = 1.0) -> float:
    """The weighted mean of a value over all workers, the same on all of them; a peer's death is not an error."""
    return process_engine.current().reduce(float(value), weight)
