"""Whatever happens to whom and when, as long as one is left: the weights are those of an undisturbed run.

The seeds are fixed. To run others, such as 30 new ones, name the first and the number:

    SEEDS=1000,30 pytest tests/cluster/test_random_schedules.py

A schedule that fails shows its seed and what was done to whom. The same seed makes the same choices, but workers run
in parallel, so the moments differ a little each time."""

from __future__ import annotations

import os
import random

import pytest

from everstep.wire import Policy
from lab.length import usual
from lab.random_harm import go_through
from lab.stage import Stage

# Longer than a busy machine lets anybody stand still who is not frozen.
STRICT = Policy(heartbeat_s=0.3, lease_s=6.0, arrive_s=60.0, stall_s=60.0)
STEPS, GATES, LAST = 24, (4, 12), 20


def seeds() -> range:
    first, _, number = os.environ.get("SEEDS", f"0,{usual(10, long=30)}").partition(",")
    return range(int(first), int(first) + int(number or 1))


@pytest.mark.parametrize("seed", seeds())
def test_a_random_schedule_with_joins(seed: int) -> None:
    chance = random.Random(seed)
    num_workers = chance.randint(2, 3)
    print(f"seed {seed}: {num_workers} workers")
    args = ["--steps", STEPS, "--micro-batches", 6, "--ballast-mb", 8]
    with Stage(*args, gates=(*GATES, LAST), workers=num_workers, policy=STRICT) as cluster:
        go_through(cluster, GATES, LAST, chance, joins=0.3)
        result = cluster.finish_undisturbed()
    first = [f"w{number}" for number in range(num_workers)]
    assert result.events("regroup.settled", worker=lambda worker: worker not in first)  # one has joined
