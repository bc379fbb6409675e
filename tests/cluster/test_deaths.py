"""Workers die: one, the first, two at once, one after the other, at the worst moment."""

from __future__ import annotations

import pytest

from stage import Stage


def test_the_others_go_on_without_one_of_four_and_then_without_rank_0() -> None:
    with Stage("--steps", 30, "--leaves", 6, "--leaf-s", 0.01, workers=4) as cluster:
        cluster.wait("step.committed", worker=cluster.rank(2), step=5)
        cluster.kill(cluster.rank(2))
        cluster.wait("regroup.settled", generation=2, size=3)
        cluster.wait("step.committed", generation=2, step=lambda step: step >= 12)
        cluster.kill(cluster.rank(0, generation=2))
        cluster.wait("regroup.settled", generation=3, size=2)
        result = cluster.finish_undisturbed()
    assert len(result.outputs) == 2
    assert result.exit_codes == {"node1": 0}


def test_two_of_four_die_at_once() -> None:
    with Stage("--steps", 30, "--leaves", 6, "--leaf-s", 0.01, workers=4) as cluster:
        cluster.wait("step.committed", worker=cluster.rank(3), step=5)
        cluster.kill(cluster.rank(3))
        cluster.kill(cluster.rank(0))
        cluster.finish_undisturbed()


@pytest.mark.parametrize("moment", ["generation.closed", "generation.formed"])
def test_another_dies_while_the_survivors_regroup(moment: str) -> None:
    with Stage("--steps", 30, "--leaves", 6, "--leaf-s", 0.01, workers=4) as cluster:
        cluster.wait("step.committed", worker=cluster.rank(1), step=5)
        cluster.kill(cluster.rank(1))
        cluster.wait(moment, generation=1 if moment == "generation.closed" else 2)
        cluster.kill(cluster.rank(2))
        cluster.finish_undisturbed()
