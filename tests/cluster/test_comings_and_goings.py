"""Workers join, are replaced, are asked to go, or end by themselves. No step is lost or done twice."""

from __future__ import annotations

from dataclasses import replace

from lab.stage import CALM, Stage


def test_a_job_grows_from_one_to_four_and_shrinks_again() -> None:
    with Stage("--steps", 40, "--micro-batches", 5, "--micro-batch-s", 0.01, gates=[5, 20], workers=1) as cluster:
        cluster.wait_at_gate(5)
        newcomers = cluster.add(3)
        cluster.wait_ready(*newcomers)
        cluster.open_gate(5)
        cluster.wait("regroup.settled", size=4)
        cluster.wait_at_gate(20)
        for worker in newcomers:
            cluster.kill(worker)
        cluster.wait("generation.formed", worker="w0", size=1, generation=lambda number: number > 2)
        (substitute,) = cluster.add()
        cluster.wait_ready(substitute)
        cluster.open_gate(20)
        cluster.wait("regroup.settled", worker=substitute, size=2)
        result = cluster.finish_undisturbed()
    assert {event["worker"] for event in result.outputs} == {"w0", substitute}


def test_a_spare_is_started_again_when_all_who_held_the_state_are_lost() -> None:
    """What it loaded when it came may be old by now. Its second start is no restart: none is allowed here."""
    with Stage("--steps", 12, "--micro-batches", 1, gates=[5], workers=1) as cluster:
        cluster.wait_at_gate(5)
        (spare,) = cluster.add()
        cluster.wait_ready(spare)
        cluster.kill("w0")
        killed = cluster.wait("worker.killed", worker=spare)
        formed = cluster.wait("generation.formed", worker="w2")
        cluster.open_gate(5)
        result = cluster.finish()
    assert "started before all who held the state of generation 1 were lost" in killed["reason"]
    assert formed["reason"].startswith("NO LIVE WORKER HOLDS THE STATE")
    assert [event["worker"] for event in result.outputs] == ["w2"]


def test_a_worker_that_gets_sigterm_leaves_after_the_step_and_nobody_loses_one() -> None:
    with Stage("--steps", 20, "--micro-batches", 6, gates=[5], workers=3) as cluster:
        cluster.wait_at_gate(5, "w0", "w1", "w2")
        cluster.preempt("w1")
        cluster.open_gate(5)
        cluster.wait("worker.left", worker="w1")
        result = cluster.finish_undisturbed()
    assert result.events("worker.exited", worker="w1")[0]["exit_code"] == 0
    assert [event["step"] for event in result.events("step.committed", worker="w1")] == [1, 2, 3, 4, 5, 6]
    assert result.events("generation.closed", worker=lambda worker: worker) == []  # no worker saw one break


def test_workers_that_can_only_train_together_leave_together_although_one_is_asked_a_step_later() -> None:
    together = replace(CALM, min_workers=3)
    with Stage("--steps", 20, "--micro-batches", 6, gates=[5, 8], workers=3, policy=together) as cluster:
        cluster.wait_at_gate(5, "w0", "w1", "w2")
        cluster.preempt("w1")
        cluster.preempt("w2")
        cluster.open_gate(5)
        cluster.wait_at_gate(8, "w0", "w1", "w2")
        cluster.preempt("w0")
        cluster.open_gate(8)
        ends = [cluster.wait("worker.exited", worker=worker) for worker in ("w0", "w1", "w2")]
        assert [end["exit_code"] for end in ends] == [0, 0, 0]
        steps = [event["step"] for event in cluster.events("step.committed", worker="w0")]
        assert steps == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_the_others_go_on_when_one_script_ends_early() -> None:
    trouble = ["--kind", "end-early", "--at-step", 5, "--worker", "w1"]
    with Stage("--steps", 12, "--micro-batches", 6, *trouble, script="trouble.py", workers=3) as cluster:
        cluster.wait("worker.left", worker="w1")
        result = cluster.finish()
    assert result.events("worker.exited", worker="w1")[0]["exit_code"] == 0
    ends = {event["worker"]: event["steps"] for event in result.outputs}
    assert ends == {"w0": 12, "w1": 5, "w2": 12}


def test_who_is_asked_to_go_while_another_dies_leaves_all_the_same() -> None:
    """The pulse has announced the leaving; the death comes before the leaver's peers have committed the step."""
    trouble = ["--kind", "slow-update", "--at-step", 5, "--worker", "w1"]
    with Stage("--steps", 12, "--micro-batches", 6, *trouble, script="trouble.py", gates=[5], workers=4) as cluster:
        cluster.wait_at_gate(5, "w0", "w1", "w2", "w3")
        cluster.preempt("w2")
        cluster.open_gate(5)
        cluster.wait("update.began", worker="w1")
        cluster.wait("step.committed", worker="w3", step=6)
        cluster.kill("w3")
        cluster.wait("worker.exited", worker="w3")
        cluster.open_gate("update")
        result = cluster.finish_undisturbed()
    assert result.events("worker.exited", worker="w2")[0]["exit_code"] == 0
    assert {event["worker"] for event in result.outputs} == {"w0", "w1"}


def test_a_newcomer_that_comes_after_the_end_ends_quietly() -> None:
    with Stage("--steps", 6, "--micro-batches", 4, gates=[5], workers=2) as cluster:
        cluster.wait_at_gate(5)
        cluster.add()  # its process has started, but training ends before it is ready
        cluster.open_gate(5)
        result = cluster.finish_undisturbed()
    assert set(result.exit_codes.values()) == {0}
    assert {event["exit_code"] for event in result.events("worker.exited")} <= {0, -15}
