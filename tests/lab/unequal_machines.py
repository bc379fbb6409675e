"""The story of a slow worker, for each door: it gets fewer micro-batches and is named, one of the others dies, and
another joins."""

from __future__ import annotations

from everstep.testing import Result
from everstep.testing.tape import Event
from lab.stage import Stage

MICRO_BATCHES, JOIN_AT = 12, 16
# Seconds for a micro-batch: much more than a busy machine adds to it.
PAUSES = {"PAUSES": "w1:0.25,*:0.04"}


def kill_and_join(cluster: Stage) -> None:
    cluster.wait("plan.dealt", generation=1)
    cluster.wait("worker.slow", worker="w1")
    cluster.kill("w2")
    cluster.wait("plan.dealt", generation=2)
    cluster.wait_at_gate(JOIN_AT)
    cluster.wait_ready(*cluster.add())
    cluster.open_gate(JOIN_AT)
    cluster.wait("plan.dealt", generation=3)


def check_shares(result: Result, computed: str) -> None:
    """`computed`: the event that the script emits for each micro-batch."""
    deals = result.events("plan.dealt")
    assert {event["generation"] for event in deals} == {1, 2, 3}
    for deal in deals:
        share = _share(result, deal, "w1")
        assert share == min(deal["shares"]) and sum(deal["shares"]) == MICRO_BATCHES
        if result.events("step.committed", worker="w1", step=deal["step"] + 1, generation=deal["generation"]):
            assert len(result.events(computed, worker="w1", step=deal["step"])) == share
    (named,) = result.events("worker.slow", worker="w1")  # once, not with each step or generation
    assert named["factor"] >= 1.5 and "w1 is slow" in named["reason"]


def _share(result: Result, deal: Event, worker: str) -> int:
    settled = result.events("regroup.settled", worker=worker, generation=deal["generation"])[-1]
    return int(deal["shares"][settled["rank"]])
