"""Datasets for the stories of the loader, in a separate module because spawned loader processes import it."""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch
from torch.utils.data import Dataset


class Numbers(Dataset[int]):
    """Sample i is i. Counts how often it was read, in this process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.num_reads = 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.num_reads += 1
        return index


class Noisy(Numbers):
    """Sample i is i and a number of each named stream: any of "python", "numpy" and "torch"."""

    def __init__(self, size: int, *streams: str) -> None:
        super().__init__(size)
        self.streams = streams

    def __getitem__(self, index: int) -> Any:
        super().__getitem__(index)
        draws = {
            "python": random.random,
            "numpy": lambda: float(numpy.random.rand()),
            "torch": lambda: torch.rand((), dtype=torch.float64).item(),
        }
        return [float(index), *(draws[stream]() for stream in self.streams)]


class InBatches(Noisy):
    """Read a batch at a time, with one draw for the whole of it."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        noise = random.random()
        return [[float(index), noise] for index in indices]


class SeldomNoisy(Numbers):
    """Only some samples draw."""

    def __getitem__(self, index: int) -> Any:
        super().__getitem__(index)
        return [float(index), random.random() if index % 5 == 3 else 0.0]


def as_they_are(samples: list[Any]) -> list[Any]:
    """A collate_fn that can be sent to another process."""
    return samples
