"""Whatever happens to whom and when, as long as one is left: the weights are those of an undisturbed run."""

from __future__ import annotations

import random

import pytest

from everstep.wire import Policy
from lab.length import usual
from lab.random_harm import go_through
from lab.stage import Stage

# Longer than a busy machine lets anybody stand still who is not frozen.
STRICT = Policy(heartbeat_s=0.3, lease_s=6.0, arrive_s=60.0, stall_s=60.0)
STEPS, GATES, LAST = 40, (6, 17, 28), 39


@pytest.mark.parametrize("seed", range(usual(6, long=20)))
def test_a_random_schedule(seed: int) -> None:
    chance = random.Random(seed)
    num_workers = chance.randint(2, 3)
    with Stage(
        "--steps", STEPS, "--micro-batches", 6, gates=(*GATES, LAST), workers=num_workers, policy=STRICT
    ) as cluster:
        go_through(cluster, GATES, LAST, chance, joins=0.3)
        result = cluster.finish_undisturbed()
    assert result.outputs
