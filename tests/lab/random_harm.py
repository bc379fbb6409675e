"""Random harm to workers, for stories with random victims: kills, freezes and requests to leave, also amid a join.

What is done to whom is printed, so a story that fails shows its schedule."""

from __future__ import annotations

import random
from collections.abc import Sequence

from lab.stage import Stage

AT_THE_GATE, STEPS_LATER = "at the gate", "steps later"
OF_A_JOIN = ("generation.formed", "transfer.receiving", "transfer.received")  # what a newcomer goes through, in order


def go_through(
    cluster: Stage, gates: Sequence[int], last: int, chance: random.Random, *, joins: float, most: int = 2
) -> None:
    """At one of the gates, up to `most` workers join; at each other one, with probability `joins`. Around each gate,
    some workers are hurt: before it opens, while newcomers join, or steps later. One newcomer is spared until it
    trains, so each schedule has a join. Then open the last gate."""
    certain = chance.choice(gates)
    for gate in gates:
        cluster.wait_at_gate(gate)
        newcomers: list[str] = []
        if gate == certain or len(living(cluster)) == 1 or chance.random() < joins:
            newcomers = cluster.add(chance.randint(1, most))
            cluster.wait_ready(*newcomers)
        moment = chance.choice((AT_THE_GATE, STEPS_LATER, *(OF_A_JOIN if newcomers else ())))
        print(f"step {gate}: {living(cluster)} train, {newcomers} join; harm: {moment}")
        exposed = newcomers[1:] if gate == certain else newcomers
        if moment == AT_THE_GATE:
            hurt(cluster, chance, exposed)
        cluster.open_gate(gate)
        if moment == STEPS_LATER:
            cluster.wait("step.committed", step=min(gate + chance.randint(1, 4), last))
        elif moment in OF_A_JOIN:
            await_join(cluster, moment, newcomers, gate + 1)
        if moment != AT_THE_GATE:
            hurt(cluster, chance, exposed)
    cluster.open_gate(last)


def await_join(cluster: Stage, moment: str, newcomers: Sequence[str], step: int) -> None:
    """Until one of the newcomers is that far, or `step` is committed: without them, if they are spares."""
    cluster.until(
        lambda: (
            bool(cluster.events(moment, worker=lambda worker: worker in newcomers))
            or bool(cluster.events("step.committed", step=step))
        ),
        f"{moment} of {newcomers}",
    )


def hurt(cluster: Stage, chance: random.Random, exposed: Sequence[str]) -> None:
    """Harm one or two of those that train and of these newcomers; always leave one that holds the state."""
    acts = [cluster.kill, cluster.preempt, cluster.freeze]
    for _ in range(chance.choice((1, 1, 2))):
        able = living(cluster)
        victims = sorted({*able, *exposed} - cluster.harmed) if len(able) > 1 else []
        if victims:
            victim, act = chance.choice(victims), chance.choices(acts, weights=(4, 3, 1))[0]
            print(f"    {act.__name__} {victim}")
            act(victim)
            cluster.harmed.add(victim)


def living(cluster: Stage) -> list[str]:
    """The workers that hold the state and were not harmed yet."""
    settled = {event["worker"] for event in cluster.events("regroup.settled")}
    return sorted(settled - cluster.harmed)
