"""Workers die: one, the first, two at once, one after the other, in the middle of an update.

The survivors are told at once: in these stories no time-out would end before the story's own patience does. A last gate
keeps those who run freely from coming to the end before all has happened to them."""

from __future__ import annotations

import pytest

from everstep.testing.cluster import JOB
from lab.stage import Stage


def test_the_others_go_on_without_one_of_four_and_then_without_rank_0() -> None:
    with Stage("--steps", 30, "--micro-batches", 6, "--micro-batch-s", 0.01, gates=[25], workers=4) as cluster:
        cluster.wait("step.committed", worker=cluster.rank(2), step=5)
        cluster.kill(cluster.rank(2))
        later = cluster.wait("regroup.settled", size=3)["generation"]
        cluster.wait("step.committed", generation=later, step=lambda step: step >= 12)
        cluster.kill(cluster.rank(0, generation=later))
        cluster.open_gate(25)
        cluster.wait("regroup.settled", size=2)
        result = cluster.finish_undisturbed()
    assert len(result.outputs) == 2
    assert result.exit_codes == {"node1": 0}


def test_two_of_four_die_at_once_in_the_middle_of_long_messages() -> None:
    with Stage("--steps", 20, "--micro-batches", 6, "--hidden", 30000, gates=[15], workers=4) as cluster:
        cluster.wait("step.committed", worker=cluster.rank(3), step=5)
        cluster.kill(cluster.rank(3))
        cluster.kill(cluster.rank(0))
        cluster.open_gate(15)
        cluster.wait("regroup.settled", size=2)
        cluster.finish_undisturbed()


@pytest.mark.parametrize("moment", ["generation.closed", "generation.formed"])
def test_another_dies_while_the_survivors_regroup(moment: str) -> None:
    with Stage("--steps", 30, "--micro-batches", 6, "--micro-batch-s", 0.01, gates=[20], workers=4) as cluster:
        cluster.wait("step.committed", worker=cluster.rank(1), step=5)
        cluster.kill(cluster.rank(1))
        cluster.wait(moment, generation=1 if moment == "generation.closed" else 2)
        cluster.kill(cluster.rank(0))
        cluster.open_gate(20)
        cluster.finish_undisturbed()


def test_one_dies_in_the_update_of_a_step_that_the_others_have_committed() -> None:
    trouble = ["--kind", "slow-update", "--at-step", 5, "--worker", "w1"]
    with Stage("--steps", 12, "--micro-batches", 6, *trouble, script="trouble.py", workers=3) as cluster:
        cluster.wait("update.began", worker="w1")
        for other in ("w0", "w2"):
            cluster.wait("step.committed", worker=other, step=6)
        cluster.kill("w1")
        cluster.finish_undisturbed()


def test_one_dies_while_another_is_in_the_update() -> None:
    """The one in its update arrives for the next generation behind its back, and finds itself at the same step."""
    trouble = ["--kind", "slow-update", "--at-step", 5, "--worker", "w1"]
    with Stage("--steps", 12, "--micro-batches", 6, *trouble, script="trouble.py", workers=3) as cluster:
        cluster.wait("update.began", worker="w1")
        cluster.wait("step.committed", worker="w2", step=6)
        cluster.kill("w2")
        cluster.wait("generation.formed", generation=2, worker="w1")
        cluster.open_gate("update")
        result = cluster.finish_undisturbed()
    assert [event["step"] for event in result.events("regroup.settled", generation=2)] == [6, 6]


def test_a_replacement_that_the_disk_does_not_let_start_is_tried_again() -> None:
    with Stage("--steps", 12, gates=[5], workers=1, max_restarts=2) as cluster:
        cluster.wait_at_gate(5)
        (cluster.directory / JOB / "w1").touch()  # its folder cannot be made
        cluster.kill("w0")
        cluster.open_gate(5)
        result = cluster.finish_undisturbed()
    assert [event["worker"] for event in result.outputs] == ["w2"]
