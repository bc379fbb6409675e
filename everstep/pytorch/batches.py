"""Batches of any structure: moved to a device, and counted."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy
import torch

from everstep.errors import UsageError

log = logging.getLogger("everstep")


class ToDevice:
    """Moves tensors and objects with a `to`, in dicts, lists and tuples, to a device. Other objects stay where they
    are; each type is logged once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._named: set[type] = set()

    def __call__(self, data: Any) -> Any:
        if isinstance(data, torch.Tensor):
            return data.to(self._device, non_blocking=True)
        if isinstance(data, tuple) and hasattr(data, "_fields"):
            return type(data)(*(self(each) for each in data))
        if isinstance(data, list | tuple):
            return type(data)(self(each) for each in data)
        if isinstance(data, Mapping):
            return {name: self(each) for name, each in data.items()}
        if callable(move := getattr(data, "to", None)):
            return move(self._device)
        if data is not None and not isinstance(data, str | bytes | int | float) and type(data) not in self._named:
            self._named.add(type(data))
            log.warning("a batch holds a %s, which is not moved to %s", type(data).__qualname__, self._device)
        return data


def batch_length(batch: Any) -> int:
    if isinstance(batch, torch.Tensor | numpy.ndarray):
        if batch.ndim == 0:
            raise UsageError(
                "a batch that is a single number has no length",
                hint="override get_batch_length",
                code="batch-is-a-single-number",
            )
        return len(batch)
    if isinstance(batch, Mapping) and batch:
        return batch_length(next(iter(batch.values())))
    if isinstance(batch, list | tuple) and batch:
        return len(batch) if isinstance(batch[0], int | float | str) else batch_length(batch[0])
    empty = "empty " if isinstance(batch, Mapping | list | tuple) else ""
    raise UsageError(
        f"cannot count the samples of a batch of type {empty}{type(batch).__name__}",
        hint="override get_batch_length",
        code="batch-length-unknown",
    )
