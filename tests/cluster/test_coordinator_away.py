"""The coordinator dies and comes back; a complete generation goes on, one that lost a member waits for it."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

from everstep.launcher.local_coordinator import CoordinatorFiles, LocalCoordinator
from lab import nest
from lab.command import until
from lab.stage import CALM, Stage


def test_deaths_after_and_during_an_absence_of_the_coordinator_are_survived() -> None:
    with Stage("--steps", 40, "--micro-batches", 6, "--micro-batch-s", 0.01, gates=[12, 24], workers=4) as cluster:
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


def test_a_complete_generation_goes_on_without_a_coordinator_for_fence_s_and_no_longer() -> None:
    """Afterwards, others may continue in its place."""
    policy = replace(CALM, fence_s=10.0)
    with Stage(
        "--steps", 1_000_000, "--micro-batches", 2, "--micro-batch-s", 0.01, workers=2, policy=policy
    ) as cluster:
        cluster.wait("step.committed", worker="w0", step=3)
        cluster.kill_coordinator()
        before = cluster.events("step.committed")[-1]["step"]
        for worker in ("w0", "w1"):
            cluster.wait("step.committed", worker=worker, step=lambda step: step > before + 3)
        for worker in ("w0", "w1"):
            cluster.wait("worker.exited", worker=worker)


def test_a_coordinator_that_the_disk_does_not_let_start_is_started_once_it_does(tmp_path: Path) -> None:
    files, said = CoordinatorFiles(directory=tmp_path), list[str]()
    with LocalCoordinator(files, say=said.append, start=nest.start_service) as coordinator:
        files.log.unlink()
        files.log.mkdir()  # cannot be written to
        assert coordinator._child is not None
        coordinator._child.signal(signal.SIGKILL)
        until(lambda: any("cannot be started, trying again" in line for line in said), lambda: str(said))
        files.log.rmdir()
        until(files.ready.exists)
