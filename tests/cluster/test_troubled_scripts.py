"""Scripts with a trouble of their own: exceptions in a micro-batch, a micro-batch that kills, branches that use other
parameters."""

from __future__ import annotations

import pytest

from lab.patience import PATIENT
from lab.stage import Stage


@pytest.mark.parametrize("kind", ["raise-forward", "raise-backward", "raise-after"])
def test_an_exception_that_the_script_catches_costs_a_retry_and_nothing_else(kind: str) -> None:
    trouble = ["--kind", kind, "--at-step", 3, "--worker", "w1"]
    with Stage("--steps", 8, "--micro-batches", 4, *trouble, script="trouble.py", workers=2, policy=PATIENT) as cluster:
        result = cluster.finish_undisturbed()
    assert len(result.outputs) == 2
    assert result.events("worker.killed") == []


@pytest.mark.parametrize("max_restarts", [0, 1])
def test_a_script_that_dies_of_its_exception_is_lost_and_named(max_restarts: int) -> None:
    """The others finish all the same; but it is no success, unless a restart was allowed for it."""
    trouble = ["--kind", "raise-uncaught", "--at-step", 3, "--worker", "w1"]
    settings = {"script": "trouble.py", "workers": 2, "policy": PATIENT, "max_restarts": max_restarts}
    with Stage("--steps", 8, "--micro-batches", 4, *trouble, **settings) as cluster:
        result = cluster.finish_undisturbed(check=False)
        assert "Trouble: in backward" in cluster.log("w1")
        report = (cluster.directory / "node1.log").read_text()
    assert result.events("worker.exited", worker="w1")[0]["exit_code"] == 1
    assert len(result.events("job.finished")) == 1
    assert result.exit_codes == {"node1": 0 if max_restarts else 1}
    assert ("w1 died of an exception in its script, with no restart left" in report) == (max_restarts == 0)


def test_a_micro_batch_that_kills_every_worker_stops_the_job_and_is_named() -> None:
    trouble = ["--kind", "deadly-micro-batch", "--at-step", 3, "--at-micro-batch", 2]
    with Stage("--steps", 8, "--micro-batches", 6, *trouble, script="trouble.py", workers=4, policy=PATIENT) as cluster:
        stopped = cluster.wait("job.stopped")
        result = cluster.finish(check=False)
        report = (cluster.directory / "node1.log").read_text()
    assert "micro-batch 2 of step 3 killed" in stopped["reason"]
    assert len(result.events("worker.exited", signal="SIGKILL", micro_batch=2)) == 3
    assert result.exit_codes == {"node1": 1}
    assert "micro-batch 2 of step 3 killed" in report


def test_micro_batches_that_use_different_parameters_agree() -> None:
    with Stage("--steps", 20, script="branches.py", gates=[15], workers=3, policy=PATIENT) as cluster:
        cluster.wait("step.committed", worker="w1", step=8)
        cluster.kill("w1")
        cluster.open_gate(15)
        cluster.finish_undisturbed()


@pytest.mark.parametrize(("rank", "exit_code"), [(0, 1), (1, 0)])
def test_a_worker_killed_after_the_last_step_fails_the_run_only_as_rank_0(rank: int, exit_code: int) -> None:
    settings = {"script": "trouble.py", "gates": ["after"], "workers": 2, "policy": PATIENT}
    with Stage("--steps", 3, "--micro-batches", 4, "--kind", "none", **settings) as cluster:
        cluster.wait_at_gate("after", "w0", "w1")
        victim = cluster.rank(rank)
        cluster.kill(victim)
        cluster.wait("worker.exited", worker=victim)
        cluster.open_gate("after")
        result = cluster.finish(check=False)
        report = (cluster.directory / "node1.log").read_text()
    assert result.exit_codes == {"node1": exit_code}
    assert len(result.outputs) == 1  # the other came to its script's end
    told = f"{victim} was killed as rank 0 after the last step" if exit_code else f"{victim} killed after the last step"
    assert told in report
