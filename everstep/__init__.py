"""Everstep trains PyTorch models on machines that come and go.

The names below are loaded when first used (PEP 562): `import everstep` is quick and does not import torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from everstep.checkpoint.checkpointer import Checkpointer
    from everstep.controller import AllReduceController, PyTorchAllReduceController
    from everstep.data.loader import DataLoader  # type: ignore[import-not-found,unused-ignore]
    from everstep.data.record_index import RecordIndexService  # type: ignore[import-not-found,unused-ignore]
    from everstep.data.sampler import ElasticDistributedSampler  # type: ignore[import-not-found,unused-ignore]
    from everstep.data.shard_dataset import ShardDataset  # type: ignore[import-not-found,unused-ignore]
    from everstep.native import (  # type: ignore[import-not-found,unused-ignore]
        DistributedDataParallel,
        ElasticTrainer,
        init_process_group,
        reduce,
    )

_HOMES = {  # public name: the module that defines it
    "AllReduceController": "everstep.controller",
    "Checkpointer": "everstep.checkpoint.checkpointer",
    "DataLoader": "everstep.data.loader",
    "DistributedDataParallel": "everstep.native",
    "ElasticDistributedSampler": "everstep.data.sampler",
    "ElasticTrainer": "everstep.native",
    "PyTorchAllReduceController": "everstep.controller",
    "RecordIndexService": "everstep.data.record_index",
    "ShardDataset": "everstep.data.shard_dataset",
    "init_process_group": "everstep.native",
    "reduce": "everstep.native",
}

__all__ = [
    "AllReduceController",
    "Checkpointer",
    "DataLoader",
    "DistributedDataParallel",
    "ElasticDistributedSampler",
    "ElasticTrainer",
    "PyTorchAllReduceController",
    "RecordIndexService",
    "ShardDataset",
    "__version__",
    "init_process_group",
    "reduce",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'everstep' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
