"""Determined's names outside of `everstep.pytorch` and `everstep.experimental`.

`core.DistributedContext`, and what is importable elsewhere too: `everstep.get_cluster_info` (cluster_info.py),
`everstep.import_from_path` (import_path.py)."""

from typing import Any

from everstep.core.distributed import DistributedContext

__all__ = ["DistributedContext"]


def __getattr__(name: str) -> Any:
    more = ""
    if name == "init":
        more = ": there is no Core API; use everstep.get_hparams(), everstep.report() and everstep.Checkpointer"
    raise AttributeError(f"module 'everstep.core' has no attribute {name!r}{more}")
