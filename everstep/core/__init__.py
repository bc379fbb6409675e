"""Determined's names outside of `everstep.pytorch`, all in this package.

`core.DistributedContext`, and what is importable elsewhere too: `everstep.get_cluster_info` (cluster_info.py),
`everstep.import_from_path` (import_path.py), `everstep.experimental.client` (checkpoint_client.py)."""

from everstep.core.distributed import DistributedContext

__all__ = ["DistributedContext"]
