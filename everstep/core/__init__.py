"""What Determined calls its Core API, as far as it means something here: who the workers are, what they tell others."""

from everstep.core.distributed import DistributedContext

__all__ = ["DistributedContext"]
