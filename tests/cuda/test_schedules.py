"""Whatever happens to whom and when on a GPU over NCCL: the weights are those of one worker."""

from __future__ import annotations

import random

import pytest

from everstep.wire import Policy
from lab.device_stage import DeviceStage
from lab.random_harm import hurt, living

QUICK = Policy(heartbeat_s=0.3, lease_s=6.0, arrive_s=30.0)
STEPS, GATES, LAST = 40, (6, 20), 39


@pytest.mark.parametrize("seed", range(10))
def test_a_random_schedule(seed: int) -> None:
    chance = random.Random(1000 + seed)
    num_workers = chance.randint(2, 4)
    with DeviceStage(
        "--steps", STEPS, device="cuda", gates=(*GATES, LAST), workers=num_workers, policy=QUICK
    ) as cluster:
        for gate in GATES:
            cluster.wait_at_gate(gate)
            if len(living(cluster)) == 1 or chance.random() < 0.5:
                cluster.wait_ready(*cluster.add(chance.randint(1, 2)))
            cluster.open_gate(gate)
            hurt(cluster, gate, chance, LAST)
        cluster.open_gate(LAST)
        result = cluster.finish_undisturbed()
    assert result.outputs
