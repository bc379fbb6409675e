"""`client.get_checkpoint(uuid)`, where Determined's scripts look for it."""

from everstep.core.checkpoint_client import CheckpointPath, get_checkpoint

__all__ = ["CheckpointPath", "get_checkpoint"]
