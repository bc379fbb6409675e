"""Whatever happens to whom and when, as long as one is left: the weights are those of an undisturbed run."""

from __future__ import annotations

import random

import pytest

from everstep.wire import Policy
from stage import Stage

QUICK = Policy(heartbeat_s=0.3, lease_s=3.0, arrive_s=20.0)
STEPS, GATES, LAST = 40, (6, 17, 28), 39


@pytest.mark.parametrize("seed", range(20))
def test_a_random_schedule(seed: int) -> None:
    chance = random.Random(seed)
    num_workers = chance.randint(2, 3)
    with Stage("--steps", STEPS, "--leaves", 6, gates=(*GATES, LAST), workers=num_workers, policy=QUICK) as cluster:
        for gate in GATES:
            cluster.wait_at_gate(gate)
            if len(living(cluster)) == 1 or chance.random() < 0.3:
                newcomers = cluster.add(chance.randint(1, 2))
                cluster.wait_ready(*newcomers)
            cluster.open_gate(gate)
            hurt(cluster, gate, chance, LAST)
        cluster.open_gate(LAST)
        result = cluster.finish_undisturbed()
    assert result.outputs


def hurt(cluster: Stage, gate: int, chance: random.Random, last: int) -> None:
    """Do something to one or two of those who train, while they run on after the gate, to the last one at most."""
    acts = [cluster.kill, cluster.preempt, cluster.freeze]
    cluster.wait("step.committed", step=min(gate + chance.randint(1, 4), last))
    for _ in range(chance.choice((1, 1, 2))):
        able = living(cluster)
        if len(able) > 1:
            victim = chance.choice(able)
            chance.choices(acts, weights=(3, 2, 1))[0](victim)
            cluster.harmed.add(victim)


def living(cluster: Stage) -> list[str]:
    """Those who hold the state and to whom nothing was done yet."""
    settled = {event["worker"] for event in cluster.events("regroup.settled")}
    return sorted(settled - cluster.harmed)
