"""Warm before ready: a newcomer runs the body once before it joins and discards the result; the others keep training.

The gate first-WORKER is in the first body of a process, and stands for the time that a compiler would take."""

from __future__ import annotations

from typing import Any

import pytest

from lab.first_body import check_join, warm
from lab.stage import Stage, undisturbed_events

WARM = "warm.py"
LOADER = ("--door", "loader")


@pytest.mark.parametrize("door", [(), LOADER])
def test_the_others_keep_training_while_a_newcomer_runs_its_first_body(door: tuple[str, ...]) -> None:
    with Stage(*door, script=WARM, gates=[3, 12, "first-w2"], workers=2) as cluster:
        warm(cluster, "w2", since=3, until=12)
        result = cluster.finish_undisturbed()
    check_join(result, "w2", since=3, until=12)
    assert result.events("first", worker="w2") == [], "a newcomer that rehearses is not the first"


def test_a_newcomer_rehearses_in_the_epoch_that_the_others_are_in_and_each_sample_counts_once() -> None:
    """An epoch has 5 steps. The newcomer arrives in the second epoch and joins in the same one."""
    with Stage(*LOADER, script=WARM, gates=[6, 8, "first-w2"], workers=2) as cluster:
        cluster.wait_at_gate(6)
        cluster.until(lambda: max(each.step for each in cluster.view().workers) == 6, "step 6 heard of")
        warm(cluster, "w2", since=6, until=8)
        result = cluster.finish_undisturbed()
    assert [event["epoch"] for event in result.events("epoch.begun", worker="w2")] == [1, 2, 3]
    alone = [event for event in undisturbed_events(WARM, *LOADER) if event["event"] in ("samples", "means")]
    batches: list[Any] = [[e["step"], e["indices"]] for e in alone if e["event"] == "samples"]
    rehearsed, *trained = result.events("samples", worker="w2")
    assert rehearsed["step"] == 0
    for event in trained:
        assert [event["step"], event["indices"]] in batches
    means = {event["epoch"]: event["loss"] for event in alone if event["event"] == "means"}
    assert {event["epoch"]: event["loss"] for event in result.events("means", worker="w2")} == {
        epoch: means[epoch] for epoch in (1, 2, 3)
    }


def test_a_replacement_for_a_dead_worker_rehearses_too() -> None:
    with Stage(script=WARM, gates=[3, 12, "first-w2"], workers=2) as cluster:
        cluster.wait_at_gate(3, "w0", "w1")
        cluster.kill("w1")
        warm(cluster, "w2", since=3, until=12)
        result = cluster.finish_undisturbed()
    assert [event["worker"] for event in result.events("worker.warmed")] == ["w2"]


def test_a_spare_rehearses_once_and_not_again_when_it_is_needed() -> None:
    with Stage("--micro-batches", 2, script=WARM, gates=[3, 12], workers=2) as cluster:
        cluster.wait_at_gate(3)
        (spare,) = cluster.add()
        cluster.wait_ready(spare)
        cluster.open_gate(3)
        cluster.wait_at_gate(12, "w0", "w1")
        cluster.kill("w1")
        cluster.open_gate(12)
        cluster.wait("step.committed", worker=spare)
        result = cluster.finish_undisturbed()
    assert [event["worker"] for event in result.events("worker.warmed")] == [spare]


def test_an_error_in_the_rehearsal_is_the_scripts_own_and_the_others_do_not_notice() -> None:
    with Stage("--fail", "w2", script=WARM, gates=[3], workers=2) as cluster:
        cluster.wait_at_gate(3)
        cluster.add()
        exited = cluster.wait("worker.exited", worker="w2")
        cluster.open_gate(3)
        result = cluster.finish_undisturbed(check=False)
    assert (exited["exit_code"], exited["micro_batch"]) == (1, -1)
    assert result.events("worker.warmed") == []
    assert {event["generation"] for event in result.events("step.committed")} == {1}


def test_a_newcomer_whose_job_ends_while_it_rehearses_ends_quietly() -> None:
    """At once: its body would take forever."""
    with Stage(script=WARM, gates=[3, "first-w2"], workers=2) as cluster:
        cluster.wait_at_gate(3)
        cluster.add()
        cluster.wait_at_gate("first-w2")
        cluster.open_gate(3)
        result = cluster.finish_undisturbed()
    assert result.events("worker.exited", worker="w2")[0]["exit_code"] == 0


def test_a_newcomer_asked_to_leave_while_it_rehearses_leaves_at_once() -> None:
    with Stage(script=WARM, gates=[3, "first-w2"], workers=2) as cluster:
        cluster.wait_at_gate(3)
        cluster.add()
        cluster.wait_at_gate("first-w2")
        cluster.preempt("w2")
        exited = cluster.wait("worker.exited", worker="w2")
        cluster.open_gate(3)
        result = cluster.finish_undisturbed()
    assert exited["exit_code"] == 0
    assert {event["generation"] for event in result.events("step.committed")} == {1}
