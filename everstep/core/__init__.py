"""Determined's names outside of `everstep.pytorch` and `everstep.experimental`.

`core.DistributedContext`, and what is importable elsewhere too: `everstep.get_cluster_info` (cluster_info.py),
`everstep.import_from_path` (import_path.py)."""

from everstep.core.distributed import DistributedContext

__all__ = ["DistributedContext"]
