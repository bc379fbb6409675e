"""The coordinator dies and comes back; a complete generation goes on, one that lost a member waits for it."""

from __future__ import annotations

from lab.stage import Stage


def test_deaths_after_and_during_an_absence_of_the_coordinator_are_survived() -> None:
    with Stage("--steps", 40, "--leaves", 6, "--leaf-s", 0.01, gates=[12, 24], workers=4) as cluster:
        cluster.wait("step.committed", worker="w0", step=3)
        cluster.kill_coordinator()
        cluster.wait_at_gate(12)  # training goes on without it
        cluster.start_coordinator()
        cluster.kill("w1")
        cluster.wait("worker.exited", worker="w1")
        cluster.open_gate(12)
        cluster.wait("regroup.settled", size=3)

        cluster.wait_at_gate(24)
        cluster.kill_coordinator()
        cluster.kill("w2")
        cluster.wait("worker.exited", worker="w2")
        cluster.open_gate(24)
        cluster.start_coordinator()
        cluster.wait("regroup.settled", size=2)
        result = cluster.finish_undisturbed()
    assert len(result.outputs) == 2
