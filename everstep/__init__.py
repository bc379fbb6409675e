"""Everstep trains PyTorch models on machines that come and go.

The names below are loaded when first used (PEP 562): `import everstep` is quick and does not import torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

LOG_FORMAT = "%(asctime)s %(levelname)s: %(name)s: %(message)s"  # for logging.basicConfig

if TYPE_CHECKING:
    from everstep import core, experimental, pytorch
    from everstep.checkpoint.checkpointer import Checkpointer
    from everstep.controller import AllReduceController, PyTorchAllReduceController
    from everstep.core.cluster_info import get_cluster_info, get_hparams
    from everstep.core.import_path import import_from_path
    from everstep.data.loader import DataLoader  # type: ignore[import-not-found,unused-ignore]
    from everstep.data.once_per_node import once_per_node
    from everstep.data.record_index import RecordIndexService  # type: ignore[import-not-found,unused-ignore]
    from everstep.data.sampler import ElasticDistributedSampler  # type: ignore[import-not-found,unused-ignore]
    from everstep.data.shard_dataset import ShardDataset  # type: ignore[import-not-found,unused-ignore]
    from everstep.native import (  # type: ignore[import-not-found,unused-ignore]
        DistributedDataParallel,
        ElasticTrainer,
        init_process_group,
        reduce,
        weights_digest,
    )
    from everstep.record.alert import alert
    from everstep.record.invalid_hp import InvalidHP
    from everstep.record.report import report

_HOMES = {  # public name: the module that defines it
    "AllReduceController": "everstep.controller",
    "Checkpointer": "everstep.checkpoint.checkpointer",
    "DataLoader": "everstep.data.loader",
    "DistributedDataParallel": "everstep.native",
    "ElasticDistributedSampler": "everstep.data.sampler",
    "ElasticTrainer": "everstep.native",
    "InvalidHP": "everstep.record.invalid_hp",
    "PyTorchAllReduceController": "everstep.controller",
    "RecordIndexService": "everstep.data.record_index",
    "ShardDataset": "everstep.data.shard_dataset",
    "alert": "everstep.record.alert",
    "get_cluster_info": "everstep.core.cluster_info",
    "get_hparams": "everstep.core.cluster_info",
    "import_from_path": "everstep.core.import_path",
    "init_process_group": "everstep.native",
    "once_per_node": "everstep.data.once_per_node",
    "reduce": "everstep.native",
    "report": "everstep.record.report",
    "weights_digest": "everstep.native",
}
_PACKAGES = ("core", "experimental", "pytorch")

__all__ = [
    "AllReduceController",
    "Checkpointer",
    "DataLoader",
    "DistributedDataParallel",
    "ElasticDistributedSampler",
    "ElasticTrainer",
    "InvalidHP",
    "LOG_FORMAT",
    "PyTorchAllReduceController",
    "RecordIndexService",
    "ShardDataset",
    "__version__",
    "alert",
    "core",
    "experimental",
    "get_cluster_info",
    "get_hparams",
    "import_from_path",
    "init_process_group",
    "once_per_node",
    "pytorch",
    "reduce",
    "report",
    "weights_digest",
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"everstep.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'everstep' has no attribute {name!r}")
    from everstep.errors import hide_our_frames

    hide_our_frames()
    try:
        value = getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(f"everstep.{name} needs torch: pip install torch", name="torch") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
