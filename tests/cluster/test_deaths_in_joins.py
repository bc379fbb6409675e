"""Deaths while workers join: of the sender, a receiver, a bystander, the coordinator; while the group forms, in the
transfer, with the state loaded, in the newcomer's first step.

Whoever joins waits at gates on its way (scripts/trouble.py), so each death comes at a known moment."""

from __future__ import annotations

import pytest

from everstep.testing import Result
from lab.stage import Stage

STEPS = 12
ARGS = ["--steps", STEPS, "--micro-batches", 6, "--ballast-mb", 32, "--kind", "slow-join"]


@pytest.mark.parametrize("phase", ["forming", "transfer"])
def test_newcomer_sender_and_bystander_die_in_one_join_after_the_other(phase: str) -> None:
    """Two workers of one node join four others. In a transfer, the first to receive has yet to pass the state on."""
    gates = [4, *{"forming": ["forming-1", "forming-2", "forming-3"], "transfer": ["transfer-1", "transfer-2"]}[phase]]
    with Stage(*ARGS, "--worker", "w4,w5", script="trouble.py", gates=gates, workers=4) as cluster:
        newcomers = join_at_4(cluster, 2)
        first = cluster.wait("gate.reached", step=f"{phase}-1")["worker"]
        (last,) = {*newcomers} - {first}
        cluster.kill(first)
        cluster.wait("generation.formed", worker=last, generation=3)
        at = 1 if phase == "transfer" else 2  # this one has seen none of the first transfer, but of the first group
        cluster.wait_at_gate(f"{phase}-{at}", last)
        kill_and_go_on(cluster, trained(cluster)[0], last, f"{phase}-{at}")
        cluster.wait_at_gate(f"{phase}-{at + 1}", last)
        assert cluster.events("transfer.received", worker=last) == []
        kill_and_go_on(cluster, trained(cluster)[1], last, f"{phase}-{at + 1}")
        cluster.open_gate(f"{phase}-1")
        result = cluster.finish_undisturbed()
    assert len(result.outputs) == 3 and has_finished(result, last)


def test_newcomer_sender_and_bystander_die_while_another_newcomer_loads_the_state() -> None:
    gates = [4, "loaded-1"]
    with Stage(*ARGS, "--worker", "w4,w5", script="trouble.py", gates=gates, workers=4) as cluster:
        assert join_at_4(cluster, 2) == ["w4", "w5"]
        cluster.wait_at_gate("loaded-1", "w5")
        for victim in ("w4", *trained(cluster)[:2]):
            kill_and_go_on(cluster, victim, "w5")
        cluster.open_gate("loaded-1")
        result = cluster.finish_undisturbed()
    assert len(result.events("transfer.received", worker="w5")) == 1  # it holds the state, whoever dies
    assert len(result.outputs) == 3 and has_finished(result, "w5")


def test_the_last_in_the_chain_dies_while_its_neighbor_passes_the_state_on() -> None:
    with Stage(*ARGS, "--worker", "w3", script="trouble.py", gates=[4, "transfer-1"], workers=2) as cluster:
        assert join_at_4(cluster, 2) == ["w2", "w3"]
        cluster.wait_at_gate("transfer-1", "w3")
        assert cluster.events("transfer.received", worker="w2") == []  # it has to pass it on first
        cluster.kill("w3")
        result = cluster.finish_undisturbed()
    assert has_finished(result, "w2")


def test_a_newcomer_goes_on_alone_if_all_others_die_in_its_first_step() -> None:
    gates = [4, "perturbed-5"]
    with Stage(*ARGS, "--worker", "w2", script="trouble.py", gates=gates, workers=2) as cluster:
        join_at_4(cluster)
        cluster.wait_at_gate("perturbed-5", "w0", "w1", "w2")  # it holds the state, and has committed nothing
        assert cluster.events("step.committed", worker="w2") == []
        cluster.kill("w0")
        cluster.kill("w1")
        cluster.open_gate("perturbed-5")
        result = cluster.finish_undisturbed()
    assert [event["worker"] for event in result.outputs] == ["w2"]


@pytest.mark.parametrize("victim", [None, "w0", "w1", "w2"])
def test_all_wait_for_a_late_newcomer_and_one_dies(victim: str | None) -> None:
    """The others are in the last of their micro-batches by then, and keep what they have computed."""
    gates = [4, "transfer-1", "perturbed-5"]
    with Stage(*ARGS, "--worker", "w2", script="trouble.py", gates=gates, workers=2) as cluster:
        cluster.open_gate("perturbed-5")  # it only reports
        join_at_4(cluster)
        cluster.wait_at_gate("transfer-1", "w2")
        cluster.until(lambda: len(cluster.events("gate.reached", step="perturbed-5")) == 6, "all micro-batches begun")
        assert cluster.events("step.committed", step=6) == []
        if victim is not None:
            cluster.kill(victim)
            cluster.wait("worker.exited", worker=victim)
        cluster.open_gate("transfer-1")
        result = cluster.finish_undisturbed()
    assert {event["worker"] for event in result.outputs} == {"w0", "w1", "w2"} - {victim}
    begun = [event["worker"] for event in result.events("gate.reached", step="perturbed-5")]
    survivor, num_own, num_inherited = ("w1" if victim == "w0" else "w0"), 3, 3 if victim in ("w0", "w1") else 0
    num_again = 1 if victim else 0  # at most the one that it was in
    assert begun.count(survivor) <= num_own + num_inherited + num_again


@pytest.mark.parametrize("victim", [None, "w0"])
def test_the_coordinator_dies_while_a_newcomer_gets_the_state(victim: str | None) -> None:
    """Without another death, the others train on with the newcomer before the coordinator is back."""
    with Stage(*ARGS, "--worker", "w2", script="trouble.py", gates=[4, "transfer-1", 9], workers=2) as cluster:
        join_at_4(cluster)
        cluster.wait_at_gate("transfer-1", "w2")
        cluster.kill_coordinator()
        if victim is not None:
            cluster.kill(victim)
            cluster.wait("worker.exited", worker=victim)
        cluster.open_gate("transfer-1")
        if victim is None:
            cluster.wait_at_gate(9, "w0", "w1", "w2")
        cluster.start_coordinator()
        cluster.open_gate(9)
        result = cluster.finish_undisturbed()
    assert {event["worker"] for event in result.outputs} == {"w0", "w1", "w2"} - {victim}


def test_a_newcomer_that_is_asked_to_leave_in_the_transfer_leaves_after_its_first_step() -> None:
    with Stage(*ARGS, "--worker", "w2", script="trouble.py", gates=[4, "transfer-1"], workers=2) as cluster:
        join_at_4(cluster)
        cluster.wait_at_gate("transfer-1", "w2")
        cluster.preempt("w2")
        cluster.open_gate("transfer-1")
        left = cluster.wait("worker.exited", worker="w2")
        result = cluster.finish_undisturbed()
    assert left["exit_code"] == 0
    assert [event["step"] for event in result.events("step.committed", worker="w2")] == [6]
    assert {event["worker"] for event in result.outputs} == {"w0", "w1"}


def join_at_4(cluster: Stage, number: int = 1) -> list[str]:
    cluster.wait_at_gate(4)
    newcomers = cluster.add(number)
    cluster.wait_ready(*newcomers)
    cluster.open_gate(4)
    return newcomers


def trained(cluster: Stage) -> list[str]:
    """The members of the newest generation that have trained before, by rank; the first one leads."""
    members = cluster.events("generation.formed", members=lambda names: names is not None)[-1]["members"]
    committed = {event["worker"] for event in cluster.events("step.committed")}
    return [worker for worker in members if worker in committed]


def kill_and_go_on(cluster: Stage, victim: str, receiver: str, gate: str | None = None) -> None:
    """Open the gate when the receiver has heard of the death, and nothing of this join counts any more."""
    generation = cluster.events("generation.formed", worker=receiver)[-1]["generation"]
    cluster.kill(victim)
    cluster.wait("generation.formed", worker=receiver, generation=lambda number: number > generation)
    if gate is not None:
        cluster.open_gate(gate)


def has_finished(result: Result, worker: str) -> bool:
    return any(event["worker"] == worker and event["steps"] == STEPS for event in result.outputs)
