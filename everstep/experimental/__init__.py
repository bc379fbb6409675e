"""Determined's `experimental.client`. The code is in core/checkpoint_client.py."""

from everstep.experimental import client

__all__ = ["client"]
