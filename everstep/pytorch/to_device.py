"""Batches moved to a device, whatever they are built of."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

log = logging.getLogger("everstep")


class ToDevice:
    """Tensors, and what has a `to`, in dicts, lists and tuples; other things stay, and are named once."""

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
