"""Random transforms that depend on the sample's place in the epoch, not on who loads it, or when.

Before a sample is read, the random streams of Python, numpy and torch are set by (seed, epoch, position). Most datasets
draw nothing; so a batch is first read without, and read again sample by sample if a stream has moved meanwhile; from
then on they are always set. What does not draw from these streams, such as numpy.random.default_rng(), is its own."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch.utils.data import Dataset, get_worker_info

from everstep.engine.seeds import seed_everything

_KNOWN = 20_240_607  # any seed whose first draws are written down below


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Which samples to read for one leaf, and the place in the epoch of the first of them."""

    indices: list[int]
    epoch: int
    position: int


def sample_seed(seed: int, epoch: int, position: int) -> int:
    """Frozen: bits of old runs depend on it."""
    digest = hashlib.blake2b(f"everstep sample {seed} {epoch} {position}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


class KeyedDataset(Dataset[Any]):
    """A dataset that is read by Request, a leaf at a time."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset = dataset
        self._seed = seed
        self._is_random = False  # a sample has drawn from a stream
        self._reads_batches = bool(getattr(dataset, "__getitems__", None))

    def __getitems__(self, request: Request) -> list[Any]:
        if not self._is_random:
            seed_everything(_KNOWN)
            samples = self._read(request.indices)
            if _draws() == _known_draws():
                return samples
            self._is_random = True
        if self._reads_batches:
            seed_everything(sample_seed(self._seed, request.epoch, request.position))
            return self._read(request.indices)
        samples = []
        for place, index in enumerate(request.indices, start=request.position):
            seed_everything(sample_seed(self._seed, request.epoch, place))
            samples.append(self.dataset[index])
        return samples

    def _read(self, indices: list[int]) -> list[Any]:
        if self._reads_batches:
            samples: list[Any] = self.dataset.__getitems__(indices)
            return samples
        dataset = self.dataset
        return [dataset[index] for index in indices]

    def show_in_worker(self) -> None:
        """Let a worker_init_fn find the user's own dataset, as it does with torch's loader."""
        info = get_worker_info()
        assert info is not None
        object.__setattr__(info, "dataset", self.dataset)  # it guards its attributes


def _draws() -> tuple[int, int, int]:
    """One from each stream."""
    drawn = torch.empty((), dtype=torch.int64).random_(generator=torch.default_generator).item()
    return int(drawn), random.getrandbits(64), int(numpy.random.randint(1 << 62))


_cache: list[tuple[int, int, int]] = []


def _known_draws() -> tuple[int, int, int]:
    if not _cache:
        seed_everything(_KNOWN)
        _cache.append(_draws())
    return _cache[0]
