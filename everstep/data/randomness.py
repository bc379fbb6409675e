"""Random transforms that depend on the sample's place in the epoch, not on who loads it, or when.

Before a sample is read, the random streams of Python, numpy and torch are set by (seed, epoch, position); a random
collate_fn continues with those of the micro-batch's last sample. Most datasets draw nothing; so a batch is first read
without, and read again sample by sample if a stream has moved meanwhile; from then on they are always set. What does
not draw from these streams, such as numpy.random.default_rng(), is its own."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy
import torch
from torch.utils.data import Dataset, get_worker_info

from everstep.engine.seeds import seed_everything

_KNOWN = 20_240_607  # any seed below 2^32

Request = tuple[
    list[int], int, int
]  # the samples of one micro-batch, the epoch, and the place in it of the first of them


def sample_seed(seed: int, epoch: int, position: int) -> int:
    """Frozen: bits of old runs depend on it."""
    digest = hashlib.blake2b(f"everstep sample {seed} {epoch} {position}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


class KeyedDataset(Dataset[Any]):
    """A dataset that is read by Request: a micro-batch at a time, collated."""

    def __init__(self, dataset: Any, seed: int, collate: Callable[[list[Any]], Any]) -> None:
        self.dataset = dataset
        self._seed = seed
        self._collate = collate
        self._is_random = False  # a sample, or collating, has drawn from a stream
        self._reads_batches = bool(getattr(dataset, "__getitems__", None))
        self._streams = _RandomStreams()

    def __getitems__(self, request: Request) -> Any:
        if not self._is_random:
            self._streams.mark()
            batch = self._collate(self._read(request[0]))
            if self._streams.are_untouched():
                return batch
            self._is_random = True
        return self._collate(self._read_keyed(*request))

    def _read_keyed(self, indices: list[int], epoch: int, position: int) -> list[Any]:
        if self._reads_batches:
            seed_everything(sample_seed(self._seed, epoch, position))
            return self._read(indices)
        samples = []
        for place, index in enumerate(indices, start=position):
            seed_everything(sample_seed(self._seed, epoch, place))
            samples.append(self.dataset[index])
        return samples

    def _read(self, indices: list[int]) -> list[Any]:
        if self._reads_batches:
            samples: list[Any] = self.dataset.__getitems__(indices)
            return samples
        dataset = self.dataset
        return [dataset[index] for index in indices]

    def enter_worker(self) -> None:
        """In a loader process, whose streams no other code draws from."""
        self._streams.are_ours = True
        info = get_worker_info()
        # A worker_init_fn finds the user's own dataset, as with torch's loader. (It guards its attributes.)
        object.__setattr__(info, "dataset", self.dataset)


def as_it_is(batch: Any) -> Any:
    """torch's loader collates what a KeyedDataset has collated already."""
    return batch


class _RandomStreams:
    """Tells whether anybody has drawn from the process's random streams, by drawing from them what is expected."""

    def __init__(self) -> None:
        self.are_ours = False
        self._expected: tuple[random.Random, numpy.random.RandomState, torch.Generator] | None = None
        self._drawn = torch.empty((), dtype=torch.int64)

    def mark(self) -> None:
        """From here on."""
        if self._expected is None or not self.are_ours:
            known = _known()  # setting a state is quicker than seeding, but for numpy
            random.setstate(known.python)
            torch.default_generator.set_state(known.tensors)
            numpy.random.seed(_KNOWN)

    def are_untouched(self) -> bool:
        drawn = self._drawn.random_().item(), random.random(), numpy.random.random()
        if not self.are_ours:
            return drawn == _known().draws
        if self._expected is None:
            self._expected = _generators()
        python, arrays, tensors = self._expected
        return drawn == (self._drawn.random_(generator=tensors).item(), python.random(), arrays.random_sample())


def _generators() -> tuple[random.Random, numpy.random.RandomState, torch.Generator]:
    return random.Random(_KNOWN), numpy.random.RandomState(_KNOWN), torch.Generator().manual_seed(_KNOWN)


class _Known(NamedTuple):
    """Where the streams are set, and what they give first."""

    python: tuple[Any, ...]
    tensors: torch.Tensor
    draws: tuple[float, float, float]


@cache
def _known() -> _Known:
    python, arrays, tensors = _generators()
    states = python.getstate(), tensors.get_state()
    drawn = torch.empty((), dtype=torch.int64).random_(generator=tensors).item()
    return _Known(*states, (drawn, python.random(), arrays.random_sample()))
