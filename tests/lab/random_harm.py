"""What chance does to those who train, for stories that choose their victims by it."""

from __future__ import annotations

import random

from lab.stage import Stage


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
