"""Workers die: one, the first, two at once, one after the other, in the middle of a transfer or of an update."""

from __future__ import annotations

import pytest

from everstep.testing.tape import Event
from stage import Stage


def test_the_others_go_on_without_one_of_four_and_then_without_rank_0() -> None:
    with Stage("--steps", 30, "--leaves", 6, "--leaf-s", 0.01, workers=4) as cluster:
        cluster.wait("step.committed", worker=cluster.rank(2), step=5)
        cluster.kill(cluster.rank(2))
        cluster.wait("regroup.settled", generation=2, size=3)
        cluster.wait("step.committed", generation=2, step=lambda step: step >= 12)
        cluster.kill(cluster.rank(0, generation=2))
        settled = cluster.wait("regroup.settled", generation=3, size=2)
        result = cluster.finish_undisturbed()
    assert settled["seconds"] < 2
    assert len(result.outputs) == 2
    assert result.exit_codes == {"node1": 0}


def test_two_of_four_die_at_once_in_the_middle_of_long_messages() -> None:
    with Stage("--steps", 20, "--leaves", 6, "--hidden", 30000, workers=4) as cluster:
        cluster.wait("step.committed", worker=cluster.rank(3), step=5)
        cluster.kill(cluster.rank(3))
        cluster.kill(cluster.rank(0))
        settled = cluster.wait("regroup.settled", size=2)
        cluster.finish_undisturbed()
    assert settled["seconds"] < 3


@pytest.mark.parametrize("moment", ["generation.closed", "generation.formed"])
def test_another_dies_while_the_survivors_regroup(moment: str) -> None:
    with Stage("--steps", 30, "--leaves", 6, "--leaf-s", 0.01, workers=4) as cluster:
        cluster.wait("step.committed", worker=cluster.rank(1), step=5)
        cluster.kill(cluster.rank(1))
        cluster.wait(moment, generation=1 if moment == "generation.closed" else 2)
        cluster.kill(cluster.rank(0))
        cluster.finish_undisturbed()


def test_newcomer_leader_and_bystander_die_in_one_transfer_after_the_other() -> None:
    with Stage("--steps", 10, "--leaves", 6, "--ballast-mb", 400, gates=[4], workers=4) as cluster:
        cluster.wait_at_gate(4)
        first, last = cluster.add(2)
        cluster.wait_ready(first, last)
        cluster.open_gate(4)

        transfer = wait_transfer(cluster, to=last)
        cluster.kill(first)  # a newcomer, in the middle of what it receives
        transfer = wait_transfer(cluster, to=last, after=transfer)
        cluster.kill(transfer["sender"])
        transfer = wait_transfer(cluster, to=last, after=transfer)
        members = cluster.events("generation.formed", members=lambda names: names is not None)[-1]["members"]
        bystander = next(name for name in members if name not in (transfer["sender"], last))
        cluster.kill(bystander)

        result = cluster.finish_undisturbed()
    assert len(result.events("transfer.received", worker=last, t=lambda t: t < transfer["t"])) == 0
    assert last in {event["worker"] for event in result.outputs}


def wait_transfer(cluster: Stage, to: str, after: Event | None = None) -> Event:
    return cluster.wait("transfer.receiving", worker=to, t=lambda t: after is None or t > after["t"])


def test_one_dies_in_the_update_of_a_step_that_the_others_have_committed() -> None:
    trouble = ["--kind", "slow-update", "--at-step", 5, "--worker", "w1"]
    with Stage("--steps", 12, "--leaves", 6, *trouble, script="trouble.py", workers=3) as cluster:
        cluster.wait("update.began", worker="w1")
        for other in ("w0", "w2"):
            cluster.wait("step.committed", worker=other, step=6)
        cluster.kill("w1")
        cluster.finish_undisturbed()


def test_one_dies_while_another_is_in_the_update() -> None:
    """The one in its update arrives for the next generation behind its back, and finds itself at the same step."""
    trouble = ["--kind", "slow-update", "--at-step", 5, "--worker", "w1"]
    with Stage("--steps", 12, "--leaves", 6, *trouble, script="trouble.py", workers=3) as cluster:
        cluster.wait("update.began", worker="w1")
        cluster.wait("step.committed", worker="w2", step=6)
        cluster.kill("w2")
        cluster.wait("generation.formed", generation=2, worker="w1")
        cluster.open_gate("update")
        result = cluster.finish_undisturbed()
    assert [event["step"] for event in result.events("regroup.settled", generation=2)] == [6, 6]
