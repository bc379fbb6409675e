"""The lower half of Determined's API, as far as it means something here: who the workers are, and plain data between them."""

from everstep.core.distributed import DistributedContext

__all__ = ["DistributedContext"]
