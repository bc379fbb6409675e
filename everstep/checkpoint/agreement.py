"""How the workers of a world agree, before they write a checkpoint together, on who writes and under which name.

No worker waits for another: one that waited for a lost worker would itself be late for the next generation. Rank 0
writes alone until it has seen that all others save too; then it announces from which save on each writes its share, two
saves ahead, so that all know it by then. Scripts in which only rank 0 saves work, and so do those in which all do. Only
a sharded state, which never sees a regroup, is waited for: no worker has all of it.

Workers that see different folders at the same path cannot write together: rank 0 writes alone then, with a warning.

Workers of a world that does not change load the same checkpoint: rank 0 announces which, after it and all others that
have come by then could read it. A worker that comes later loads that one, or fails.

Saves are known by their steps, not by counting them: a worker that was late when a generation broke gets that
generation's last step from its peers and saves it in the next one, where they do not."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from everstep import env
from everstep.checkpoint.write import listed_ranks
from everstep.engine import process_engine
from everstep.engine.group import generation_store
from everstep.errors import CheckpointBroken, CheckpointFailed

WORD_S = 60.0  # how long rank 0 may come after us
READ_S = 1800.0  # how long another worker may read a checkpoint
NUM_AHEAD = 2  # saves between rank 0's word and the first that all write together
CONNECT_S = 1.0  # rank 0 of a generation that just broke cannot be reached: be on time for the next one

_NUM_MARKS = 1000

log = logging.getLogger("everstep.checkpoint")

_uses: Counter[tuple[Any, ...]] = Counter()  # keys are never used twice


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerPlace:
    """This worker's place among those that save."""

    generation: int
    rank: int
    size: int
    job: str = ""
    is_elastic: bool = False  # a world of the engine, which may regroup


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveMark:
    """Which save of a world."""

    step: int
    num_returns: int = 0  # how often the script went back to a lower step before
    num_before: int = 0  # saves of this step right before this one


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    """Rank 0's decision: `token` names the saves of this world, `base` orders them."""

    token: str
    base: int
    is_split: bool  # whether all write this save together


def place_now() -> WorkerPlace:
    job = env.job() if env.coordinator_url() else ""
    if (world := process_engine.joined_world()) is not None:
        return WorkerPlace(generation=world.generation, rank=world.rank, size=world.size, job=job, is_elastic=True)
    if dist.is_available() and dist.is_initialized():
        return WorkerPlace(generation=0, rank=dist.get_rank(), size=dist.get_world_size(), job=job)
    return WorkerPlace(generation=0, rank=0, size=1, job=job)


class Agreement:
    """Of one world; another world makes another one."""

    def __init__(self, place: WorkerPlace, uri: str, store: Any = None, *, identity: Callable[[], str]) -> None:
        """`store` carries the messages; without one, that of the world. `identity` is the storage's."""
        self.place = place
        self._uri = uri
        self._identity = identity
        self._token = os.urandom(4).hex()
        self._base: int | None = None
        self._marks: deque[SaveMark] = deque(maxlen=_NUM_MARKS)  # of this worker's last saves
        self._said_at: SaveMark | None = None  # the save at which rank 0 announced that all will write together
        self._is_split = False
        self._has_announced = False  # to the others that this worker saves too
        self._has_warned = False
        self._opened = store

    def mark(self, step: int) -> SaveMark:
        """The save that begins now."""
        last = self._marks[-1] if self._marks else SaveMark(step=-1)
        mark = SaveMark(
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
        """The checkpoints to load, in order of preference: rank 0's list, so that all load the same. In a job that
        regroups each worker loads when it comes, and takes the others' state when it joins."""
        if self.place.size == 1 or self.place.is_elastic:
            return make()
        if self.place.rank == 0:
            found = make()
            self._store.set(f"load/{number}", json.dumps(found))
            return found
        self._store.set(f"load/{number}/came/{self.place.rank}", "1")
        return list(json.loads(self._get(f"load/{number}", WORD_S)))

    def verdict(self, number: int, index: int, problem: str) -> str:
        """Why the workers do not load candidate `index`; empty if they do. `problem` is this worker's own.

        Raises CheckpointBroken where the others have loaded a checkpoint that this worker cannot read."""
        if self.place.size == 1 or self.place.is_elastic:
            return problem
        key = f"load/{number}/{index}"
        if self.place.rank > 0:
            self._store.set(f"{key}/{self.place.rank}", problem)
            word = self._get(f"{key}/word", READ_S)
            if problem and not word:
                raise CheckpointBroken(
                    f"rank {self.place.rank} cannot read the checkpoint that rank 0 has loaded: {problem}",
                    hint="start the workers again once all of them can read it",
                    code="checkpoint-unreadable-on-one-rank",
                )
            return word
        for rank in range(1, self.place.size):
            if not problem and self._store.check([f"load/{number}/came/{rank}"]):
                theirs = self._get(f"{key}/{rank}", READ_S)
                problem = f"rank {rank} cannot read it: {theirs}" if theirs else ""
        self._store.set(f"{key}/word", problem)
        return problem

    def _decide(self, is_sharded: bool, base: Callable[[], int]) -> None:
        if self._base is None:
            self._base = base()
        if self.place.size == 1 or self._said_at is not None:
            return
        self._announce()
        others = [f"saves/{rank}" for rank in range(1, self.place.size)]
        if not is_sharded and not self._store.check(others):
            return
        strangers = [number + 1 for number, key in enumerate(others) if not self._is_ours(self._get(key, WORD_S))]
        said_at = self._marks[-1]
        if not strangers:
            self._store.set("split", json.dumps([asdict(said_at), self._token, self._base]))
            self._said_at = said_at
        elif is_sharded:
            self._store.set("split", "null")
            raise self._apart(strangers)
        else:
            self._warn(f"{listed_ranks(strangers)} will not find the checkpoints that rank 0 writes", strangers)

    def _hear(self, is_sharded: bool) -> None:
        self._announce()  # before rank 0 is waited for
        if not is_sharded and self._store.check(["saves/0"]) and not self._is_ours(self._get("saves/0", WORD_S)):
            self._warn("rank 0 alone writes checkpoints, and this worker will not find them", [self.place.rank])
        elif is_sharded or self._store.check(["split"]):
            word = json.loads(self._get("split", WORD_S))
            if word is None:
                raise self._apart([self.place.rank])
            said_at, self._token, self._base = word
            self._said_at = SaveMark(**said_at)

    def _announce(self) -> None:
        if not self._has_announced:
            self._store.set(f"saves/{self.place.rank}", self._identity())
            self._has_announced = True  # else again with the next one: rank 0 may have been busy

    def _is_ours(self, identity: str) -> bool:
        return bool(identity) and identity == self._identity()

    def _warn(self, effect: str, strangers: list[int]) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning("%s: %s\n  HINT: %s", self._apart(strangers).message, effect, _COMMON)

    def _apart(self, strangers: list[int]) -> CheckpointFailed:
        return CheckpointFailed(
            f"{self._uri} is not the same folder for {listed_ranks(strangers)} as for rank 0",
            hint=_COMMON,
            kind="apart",
            code="checkpoint-folder-not-shared",
        )

    def _get(self, key: str, timeout_s: float) -> str:
        try:
            self._store.wait([key], timedelta(seconds=timeout_s))
            return bytes(self._store.get(key)).decode()
        except RuntimeError as error:  # torch's store errors
            whom = "rank 0" if self.place.rank else "another worker"
            raise CheckpointFailed(
                f"rank {self.place.rank} gave up waiting for {whom} after {timeout_s:.0f} s",
                hint="save and load on all workers, or on rank 0 alone",
                code="checkpoint-peer-timeout",
            ) from error

    @property
    def _store(self) -> Any:
        if self._opened is None:
            self._opened = _open_store(self.place, self._uri)
        return self._opened


_COMMON = "use a folder that all workers share, or a bucket"


def _open_store(place: WorkerPlace, uri: str) -> Any:
    world = process_engine.joined_world()
    if world is not None:
        store = generation_store(world, "checkpoint", CONNECT_S)
    else:
        store = dist.distributed_c10d._get_default_store()
    use = (place.generation, uri)
    _uses[use] += 1
    digest = hashlib.sha256(uri.encode()).hexdigest()[:16]
    return dist.PrefixStore(f"everstep/checkpoint/{digest}/{_attempt()}{_uses[use]}", store)


def _attempt() -> str:
    """torchrun's store outlives the workers: entries from before a restart are void."""
    return "" if env.coordinator_url() else f"attempt{env.num_restarts()}/"
