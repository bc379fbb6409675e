"""Determined's `experimental.client`."""

from everstep.experimental import client

__all__ = ["client"]
