"""What the workers of a world agree on before they write a checkpoint together: who writes, under which name.

Nobody waits for anybody: a worker that waited for one that is lost would itself be late for the next generation.
Rank 0 writes alone until it has seen that all others save too; then it says from which save on each writes its share,
two saves ahead, so that all have heard it by then. Scripts in which only rank 0 saves work, and so do those in which
all do. Only a sharded state, which no regroup can happen to, is waited for: nobody has all of it.

Saves are known by their steps, not by counting them: a worker that was late when a generation broke gets that
generation's last step from its peers and saves it in the next one, where they do not."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from everstep import env
from everstep.engine import current
from everstep.engine.group import generation_store
from everstep.errors import CheckpointFailed

WORD_S = 60.0  # so long may rank 0 come after us
NUM_AHEAD = 2  # saves between rank 0's word and the first that all write together
CONNECT_S = 1.0  # rank 0 of a generation that just broke cannot be reached: be on time for the next one

_NUM_MARKS = 1000

_uses: Counter[tuple[Any, ...]] = Counter()  # keys are never used twice


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """This worker's place among those that save."""

    generation: int
    rank: int
    size: int
    job: str = ""
    is_elastic: bool = False  # a world of ours, that may be followed by another one


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """Which save of a world."""

    step: int
    num_returns: int = 0  # so often has the script gone back to a lower step before
    num_before: int = 0  # saves of this step right before this one


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    """Rank 0's decision: `token` names the saves of this world, `base` orders them."""

    token: str
    base: int
    is_split: bool  # whether all write this save together


def place_now() -> Place:
    job = env.job() if env.coordinator_url() else ""
    if (world := current.joined_world()) is not None:
        return Place(generation=world.generation, rank=world.rank, size=world.size, job=job, is_elastic=True)
    if dist.is_available() and dist.is_initialized():
        return Place(generation=0, rank=dist.get_rank(), size=dist.get_world_size(), job=job)
    return Place(generation=0, rank=0, size=1, job=job)


class Agreement:
    """Of one world; another world makes another one."""

    def __init__(self, place: Place, uri: str, store: Any = None) -> None:
        """`store` is where the workers talk; without one, that of their world."""
        self.place = place
        self._uri = uri
        self._token = os.urandom(4).hex()
        self._base: int | None = None
        self._marks: deque[Mark] = deque(maxlen=_NUM_MARKS)  # of this worker's last saves
        self._said_at: Mark | None = None  # the save at which rank 0 said that all will write together
        self._is_split = False
        self._has_told = False  # rank 0 that this worker saves too
        self._opened = store

    def mark(self, step: int) -> Mark:
        """The save that begins now."""
        last = self._marks[-1] if self._marks else Mark(step=-1)
        mark = Mark(
            step=step,
            num_returns=last.num_returns + (step < last.step),
            num_before=last.num_before + 1 if step == last.step else 0,
        )
        self._marks.append(mark)
        return mark

    def settle(self, *, is_sharded: bool, base: Callable[[], int]) -> Word | None:
        """The word for the save that was marked last; None: this worker writes nothing.

        `base` is asked of rank 0, once. Raises CheckpointFailed."""
        if self.place.rank == 0:
            self._decide(is_sharded, base)
        elif self._said_at is None:
            self._hear(is_sharded)
        if not self._is_split:
            self._is_split = is_sharded or self._said_at in list(self._marks)[:-NUM_AHEAD]
        if self._base is None or (self.place.rank > 0 and not self._is_split):
            return None
        return Word(token=self._token, base=self._base, is_split=self._is_split and self.place.size > 1)

    def candidates(self, number: int, make: Callable[[], list[str]]) -> list[str]:
        """What to load, in order of preference: rank 0's list, so that all load the same. In a job that regroups each
        worker loads when it comes, and takes the others' state when it joins."""
        if self.place.size == 1 or self.place.is_elastic:
            return make()
        if self.place.rank == 0:
            found = make()
            self._store.set(f"load/{number}", json.dumps(found))
            return found
        return list(json.loads(self._get(f"load/{number}")))

    def _decide(self, is_sharded: bool, base: Callable[[], int]) -> None:
        if self._base is None:
            self._base = base()
        if self.place.size == 1 or self._said_at is not None:
            return
        others = [f"saves/{rank}" for rank in range(1, self.place.size)]
        if is_sharded or self._store.check(others):
            said_at = self._marks[-1]
            self._store.set("split", json.dumps([asdict(said_at), self._token, self._base]))
            self._said_at = said_at

    def _hear(self, is_sharded: bool) -> None:
        if not self._has_told and not is_sharded:
            self._store.set(f"saves/{self.place.rank}", "1")
            self._has_told = True  # else again with the next one: rank 0 may have been busy
        if is_sharded or self._store.check(["split"]):
            said_at, self._token, self._base = json.loads(self._get("split"))
            self._said_at = Mark(**said_at)

    def _get(self, key: str) -> str:
        try:
            self._store.wait([key], timedelta(seconds=WORD_S))
            return bytes(self._store.get(key)).decode()
        except RuntimeError as error:  # torch's store errors
            raise CheckpointFailed(
                f"rank {self.place.rank} waited {WORD_S:.0f} s for rank 0, which did not come",
                hint="save and load on all workers, or on rank 0 alone",
            ) from error

    @property
    def _store(self) -> Any:
        if self._opened is None:
            self._opened = _open_store(self.place, self._uri)
        return self._opened


def _open_store(place: Place, uri: str) -> Any:
    world = current.joined_world()
    if world is not None:
        store = generation_store(world, "checkpoint", CONNECT_S)
    else:
        store = dist.distributed_c10d._get_default_store()
    use = (place.generation, uri)
    _uses[use] += 1
    digest = hashlib.sha256(uri.encode()).hexdigest()[:16]
    return dist.PrefixStore(f"everstep/checkpoint/{digest}/{_attempt()}{_uses[use]}", store)


def _attempt() -> str:
    """torchrun's store outlives the workers: what was said before it started them again is void."""
    return "" if env.coordinator_url() else f"attempt{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/"
