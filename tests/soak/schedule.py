"""What happens in one schedule, decided by its seed alone. Pure: knows neither processes nor clocks.

Whom a fault meets is decided when it happens, by `pick`, among those who are there then."""

from __future__ import annotations

import random
from dataclasses import dataclass

NATIVE, TRIAL, CONTROLLER = "native", "trial", "controller"
EXACT, FAST = "exact", "fast"
LEASE_S = 4.0  # who is silent for longer is lost

# How often each comes, in parts of all.
ANYWHERE = {
    "kill": 5,
    "kill-two": 2,
    "freeze": 3,
    "freeze-node": 1,
    "preempt": 2,
    "preempt-node": 1,
    "join": 3,
    "kill-agent": 2,
    "kill-coordinator": 2,
    "end-coordinator": 1,
    "freeze-coordinator": 1,
    "fill-disk": 3,
    "read-only-disk": 2,
}
IF_RESTARTED = {"kill-all": 1}  # all go on from a checkpoint
BETWEEN_HOSTS = {"cut-cable": 5, "cut-between": 3, "crash-host": 3}
NUM_HOSTS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    kind: str
    after_s: float  # since the one before
    lasts_s: float  # then it is undone, if it can be
    pick: int  # who of those who may be meant


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    seed: int
    door: str
    mode: str
    training_seed: int
    num_workers: int
    num_hosts: int  # each with a network of its own; 0: all are on one
    max_restarts: int
    num_loaders: int  # processes that read records, for each worker
    global_batches: int  # of the controller, for each step; 0: so many for each worker
    faults: tuple[Fault, ...]


def decide(seed: int) -> Schedule:
    chance = random.Random(seed)
    door = chance.choices((NATIVE, TRIAL, CONTROLLER), (3, 2, 2))[0]
    has_hosts = chance.random() < 0.15
    max_restarts = chance.choice((0, 20))
    kinds = ANYWHERE | (IF_RESTARTED if max_restarts else {}) | (BETWEEN_HOSTS if has_hosts else {})
    return Schedule(
        seed=seed,
        door=door,
        mode=FAST if door == CONTROLLER or chance.random() < 0.25 else EXACT,
        training_seed=chance.randrange(2),
        num_workers=NUM_HOSTS if has_hosts else chance.randint(2, 3),
        num_hosts=NUM_HOSTS if has_hosts else 0,
        max_restarts=max_restarts,
        num_loaders=chance.choices((0, 1), (4, 1))[0],
        global_batches=chance.choice((0, 6)) if door == CONTROLLER else 0,
        faults=tuple(_fault(chance, kinds) for _ in range(chance.randint(3, 8))),
    )


def _fault(chance: random.Random, kinds: dict[str, int]) -> Fault:
    (kind,) = chance.choices([*kinds], [*kinds.values()])
    is_long = chance.random() < 0.2
    return Fault(
        kind=kind,
        after_s=chance.expovariate(1 / 0.6),
        lasts_s=LEASE_S + 2 * chance.random() if is_long else 2 * chance.random(),
        pick=chance.randrange(1 << 16),
    )
