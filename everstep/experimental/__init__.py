"""`experimental.client`: what Determined's scripts ask of a cluster after the training."""

from everstep.experimental import client

__all__ = ["client"]
