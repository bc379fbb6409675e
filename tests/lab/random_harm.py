"""Random harm to the workers that train, for stories with random victims."""

from __future__ import annotations

import random
from collections.abc import Sequence

from lab.stage import Stage


def go_through(
    cluster: Stage, gates: Sequence[int], last: int, chance: random.Random, *, joins: float, most: int = 2
) -> None:
    """At each gate, up to `most` workers join with probability `joins`; after the gate, some workers are hurt. Then
    open the last gate."""
    for gate in gates:
        cluster.wait_at_gate(gate)
        if len(living(cluster)) == 1 or chance.random() < joins:
            cluster.wait_ready(*cluster.add(chance.randint(1, most)))
        cluster.open_gate(gate)
        hurt(cluster, gate, chance, last)
    cluster.open_gate(last)


def hurt(cluster: Stage, gate: int, chance: random.Random, last: int) -> None:
    """Harm one or two of the workers that train, while they continue after the gate; always leave one."""
    acts = [cluster.kill, cluster.preempt, cluster.freeze]
    cluster.wait("step.committed", step=min(gate + chance.randint(1, 4), last))
    for _ in range(chance.choice((1, 1, 2))):
        able = living(cluster)
        if len(able) > 1:
            victim = chance.choice(able)
            chance.choices(acts, weights=(3, 2, 1))[0](victim)
            cluster.harmed.add(victim)


def living(cluster: Stage) -> list[str]:
    """The workers that hold the state and were not harmed yet."""
    settled = {event["worker"] for event in cluster.events("regroup.settled")}
    return sorted(settled - cluster.harmed)
