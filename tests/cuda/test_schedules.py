"""Whatever happens to whom and when on a GPU over NCCL: the weights are those of one worker."""

from __future__ import annotations

import random

import pytest

from everstep.wire import Policy
from lab.device_stage import DeviceStage
from lab.random_harm import go_through

QUICK = Policy(heartbeat_s=0.3, lease_s=6.0, arrive_s=30.0)
STEPS, GATES, LAST = 40, (6, 20), 39


@pytest.mark.parametrize("seed", range(10))
def test_a_random_schedule(seed: int) -> None:
    chance = random.Random(1000 + seed)
    num_workers = chance.randint(2, 4)
    with DeviceStage(
        "--steps", STEPS, device="cuda", gates=(*GATES, LAST), workers=num_workers, policy=QUICK
    ) as cluster:
        go_through(cluster, GATES, LAST, chance, joins=0.5)
        result = cluster.finish_undisturbed()
    assert result.outputs
