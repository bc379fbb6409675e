"""What the workers of a world agree on before they write a checkpoint together: who writes, under which name.

Rank 0 decides and never waits; the others wait for its word. The first checkpoint of a world is written by rank 0 alone
unless the state is sharded: only then is it known whether the others save at all. Scripts in which only rank 0 saves
work, and so do those in which all do; the latter share the work from the second checkpoint on."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from everstep import env
from everstep.engine import current
from everstep.engine.group import generation_store
from everstep.errors import CheckpointFailed

WORD_S = 30.0  # so long may rank 0 come after us

_uses: Counter[tuple[Any, ...]] = Counter()  # keys are never used twice


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """This worker's place among those that save."""

    generation: int
    rank: int
    size: int
    job: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    """Rank 0's decision: `token` names the saves of this world, `base` orders them."""

    is_split: bool
    token: str
    base: int
    error: str = ""


def place_now() -> Place:
    job = env.job() if env.coordinator_url() else ""
    if (world := current.joined_world()) is not None:
        return Place(generation=world.generation, rank=world.rank, size=world.size, job=job)
    if dist.is_available() and dist.is_initialized():
        return Place(generation=0, rank=dist.get_rank(), size=dist.get_world_size(), job=job)
    return Place(generation=0, rank=0, size=1, job=job)


class Agreement:
    """Of one world; another world makes another one."""

    def __init__(self, place: Place, uri: str) -> None:
        self.place = place
        self._word: Word | None = None
        self._token = os.urandom(4).hex()
        self._base: int | None = None
        self._store: Any = _open_store(place, uri) if place.size > 1 else None

    def settle(self, number: int, *, is_sharded: bool, base: Callable[[], int]) -> Word:
        """The word for this world's save of that number, the first being 1. `base` is asked of rank 0, once."""
        if self._word is not None and (self._word.is_split or self._store is None):
            return self._word
        if self.place.rank == 0:
            self._word = self._decide(number, is_sharded, base)
        else:
            if number == 1:
                self._store.set(f"saves/{self.place.rank}", "1")
            self._word = self._hear(number)
        if self._word.error:
            error, self._word = self._word.error, None
            raise CheckpointFailed(error)
        return self._word

    def candidates(self, number: int, make: Callable[[], list[str]]) -> list[str]:
        """What to load, in order of preference: rank 0's list, so that all load the same."""
        if self._store is None:
            return make()
        if self.place.rank == 0:
            found = make()
            self._store.set(f"load/{number}", json.dumps(found))
            return found
        return list(json.loads(self._get(f"load/{number}")))

    def _decide(self, number: int, is_sharded: bool, base: Callable[[], int]) -> Word:
        error = ""
        if self._base is None:
            try:
                self._base = base()
            except Exception as failed:  # the others must not wait for a word that never comes
                error = f"rank 0 could not look into the storage: {type(failed).__name__}: {failed}"
        others = [f"saves/{rank}" for rank in range(1, self.place.size)]
        all_save = self._store is not None and number > 1 and self._store.check(others)
        is_split = self._store is not None and (is_sharded or all_save)
        word = Word(is_split=is_split, token=self._token, base=self._base or 0, error=error)
        if self._store is not None:
            self._store.set(f"word/{number}", json.dumps(asdict(word)))
        return word

    def _hear(self, number: int) -> Word:
        return Word(**json.loads(self._get(f"word/{number}")))

    def _get(self, key: str) -> str:
        try:
            self._store.wait([key], timedelta(seconds=WORD_S))
            return bytes(self._store.get(key)).decode()
        except RuntimeError as error:  # torch's store errors
            raise CheckpointFailed(
                f"rank {self.place.rank} waited {WORD_S:.0f} s for rank 0, which did not come",
                hint="save and load on all workers, or on rank 0 alone",
            ) from error


def _open_store(place: Place, uri: str) -> Any:
    world = current.joined_world()
    store = generation_store(world, "checkpoint") if world is not None else dist.distributed_c10d._get_default_store()
    use = (place.generation, uri)
    _uses[use] += 1
    digest = hashlib.sha256(uri.encode()).hexdigest()[:16]
    return dist.PrefixStore(f"everstep/checkpoint/{digest}/{_uses[use]}", store)
