"""Deaths, joins and departures while gradients are summed on the device: run on a GPU and, with a stand-in, in CI."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from everstep.testing import Result
from everstep.wire import Policy
from lab.device_stage import DeviceStage

PLACES = ("forward", "backward", "sum", "update")
STRICT = Policy(lease_s=6.0, arrive_s=60.0, stall_s=60.0)  # longer than any worker pauses that is not frozen
LONG = 30_000  # hidden units: 8 MB of gradients


def undisturbed(device: str, workers: int, *args: object) -> Result:
    with DeviceStage(*args, device=device, workers=workers) as cluster:
        result = cluster.finish_undisturbed()
    assert len(result.outputs) == workers
    return result


def fast(device: str, workers: int) -> None:
    """The bits depend on the world, but all of its workers have the same bits."""
    with DeviceStage("--reduce", "fast", device=device, gates=[8], workers=workers) as cluster:
        cluster.wait_at_gate(8)
        cluster.kill("w1")
        cluster.open_gate(8)
        result = cluster.finish()
    assert result.weights_digest
    assert len(result.outputs) == workers - 1


def killed_in(place: str, device: str) -> None:
    """The victim is held at the place, so the others are in the sum of that step when it dies. For a death in the sum,
    another worker holds the victim there: the victim's kernel runs, and waits for the other worker's."""
    holds = ["backward@5:w2"] if place == "sum" else [f"{place}@5:w1"]
    with DeviceStage(device=device, holds=holds, workers=4) as cluster:
        if place == "sum":
            cluster.wait_at_gate("backward", "w2")
            cluster.wait("backward.ended", worker="w1", step=5)
        else:
            cluster.wait_at_gate(place, "w1")
        if place == "update":
            for other in ("w0", "w2", "w3"):
                cluster.wait("step.committed", worker=other, step=6)
        cluster.kill("w1")
        cluster.wait("worker.exited", worker="w1")
        cluster.open_gate("backward")
        cluster.wait_settled(3)
        result = cluster.finish_undisturbed()
    assert {event["worker"] for event in result.outputs} == {"w0", "w2", "w3"}


def two_killed_at_once(device: str, hidden: int = LONG) -> None:
    """In the middle of long messages."""
    with DeviceStage("--hidden", hidden, device=device, gates=[12], workers=4) as cluster:
        cluster.wait("backward.ended", worker="w3", step=5)
        cluster.kill("w3")
        cluster.kill("w0")
        cluster.open_gate(12)
        cluster.wait_settled(2)
        result = cluster.finish_undisturbed()
    assert {event["worker"] for event in result.outputs} == {"w1", "w2"}


def frozen(device: str) -> None:
    with DeviceStage(device=device, holds=["backward@5:w1"], workers=3, policy=STRICT) as cluster:
        cluster.wait_at_gate("backward", "w1")
        cluster.freeze("w1")
        cluster.wait("worker.lost", worker="w1")
        result = cluster.finish_undisturbed()
    assert {event["worker"] for event in result.outputs} == {"w0", "w2"}


def joined(device: str) -> None:
    with DeviceStage(device=device, gates=[5], workers=2) as cluster:
        cluster.wait_at_gate(5)
        (newcomer,) = cluster.add()
        cluster.wait_ready(newcomer)
        cluster.open_gate(5)
        cluster.wait("regroup.settled", worker=newcomer, size=3)
        result = cluster.finish_undisturbed()
    assert newcomer in {event["worker"] for event in result.outputs}


def replaced(device: str) -> None:
    with DeviceStage(device=device, gates=[5, 10], workers=3, max_restarts=1) as cluster:
        cluster.wait_at_gate(5, "w0", "w1", "w2")
        cluster.kill("w1")
        cluster.open_gate(5)
        cluster.wait_at_gate(10)
        cluster.wait("worker.started", worker="w3")
        cluster.wait_ready("w3")
        cluster.open_gate(10)
        cluster.wait("regroup.settled", worker="w3", size=3)
        result = cluster.finish_undisturbed()
    assert {event["worker"] for event in result.outputs} == {"w0", "w2", "w3"}


def shrunk_to_one_and_grown_to_four(device: str) -> None:
    with DeviceStage(device=device, gates=[4, 9], workers=3) as cluster:
        cluster.wait_at_gate(4, "w0", "w1", "w2")
        cluster.kill("w1")
        cluster.kill("w2")
        cluster.open_gate(4)
        cluster.wait_settled(1)
        cluster.wait_at_gate(9)
        newcomers = cluster.add(3)
        cluster.wait_ready(*newcomers)
        cluster.open_gate(9)
        cluster.wait_settled(4)
        result = cluster.finish_undisturbed()
    assert {event["worker"] for event in result.outputs} == {"w0", *newcomers}


def killed_while_the_communicator_forms(device: str, moment: int) -> None:
    """In its first settling, or in the second, after another death: it has said hello, and then does not show up."""
    with DeviceStage(device=device, holds=[f"forming@{moment}:w2"], gates=[3], workers=4) as cluster:
        if moment == 2:
            cluster.wait_at_gate(3, "w0", "w1", "w2", "w3")
            cluster.kill("w1")
        cluster.open_gate(3)
        cluster.wait_at_gate("forming", "w2")
        cluster.kill("w2")
        cluster.wait_settled(4 - moment)
        result = cluster.finish_undisturbed()
    assert len(result.outputs) == 4 - moment


def killed_in_a_transfer(device: str, who: str) -> None:
    """The sender or the receiver dies: the transfer has begun, and most of the state is still to come."""
    ballast = {"BALLAST_MB": "32"}
    with DeviceStage(device=device, holds=["transfer@1:w2"], gates=[4], workers=2, env=ballast) as cluster:
        cluster.wait_at_gate(4)
        (newcomer,) = cluster.add()
        cluster.wait_ready(newcomer)
        cluster.open_gate(4)
        cluster.wait_at_gate("transfer", newcomer)
        sender = cluster.wait("transfer.receiving", worker=newcomer)["sender"]
        victim = sender if who == "sender" else newcomer
        cluster.kill(victim)
        cluster.wait("worker.exited", worker=victim)
        cluster.open_gate("transfer")
        result = cluster.finish_undisturbed()
    assert {event["worker"] for event in result.outputs} == {"w0", "w1", newcomer} - {victim}


def own_collective_broken(device: str) -> None:
    """One worker dies before it reaches the script's all_reduce; the others get PeerLost, and continue."""
    held = {"holds": ["collective@8:w1"], "script": "default_group.py"}
    with DeviceStage("--steps", 16, device=device, workers=3, **held) as cluster:  # type: ignore[arg-type]
        cluster.wait_at_gate("collective", "w1")
        for other in ("w0", "w2"):
            cluster.wait("group.asked", worker=other, step=8)
        cluster.kill("w1")
        result = cluster.finish_undisturbed()
    assert {event["worker"] for event in result.events("group.lost", step=8)} == {"w0", "w2"}
    assert {event["count"] for event in result.events("group.told", step=16)} == {2}


def thirty_regroups_leak_nothing(device: str, *, every: int, micro_batch_s: float) -> dict[str, Any]:
    """One worker's script fails in backward again and again, and continues: each time, the communicator is given up."""
    steps = 30 * every + 2
    env = {"RAISES": f"w1:{every}", "SAMPLES": "1", "MICRO_BATCH_S": str(micro_batch_s)}
    with DeviceStage("--steps", steps, device=device, workers=2, env=env) as cluster:
        result = cluster.finish_undisturbed()
    assert len(result.events("regroup.settled", worker="w0")) > 30
    grown = {}
    for worker in ("w0", "w1"):
        early = result.events("resources", worker=worker, step=lambda step: 3 * every < step <= 6 * every)
        (end,) = result.events("resources.settled", worker=worker)
        most = {name: max(event[name] for event in early) for name in ("threads", "descriptors", "gpu_mb", "own_mb")}
        grown[worker] = {name: end[name] - most[name] for name in most}
        # Rank 0 has a store with a thread and six descriptors for the current generation; one may be about to end.
        assert grown[worker]["threads"] <= 1, f"{worker} had {most} threads, {end} at the end"
        assert grown[worker]["descriptors"] <= 6, f"{worker} had {most} descriptors, {end} at the end"
        assert grown[worker]["gpu_mb"] <= 64, f"{worker} saw {most} of the GPU in use, {end} at the end"
        assert grown[worker]["own_mb"] <= 16, f"{worker} had {most} of the GPU, {end} at the end"
    return grown


def step_seconds(result: Result, worker: str) -> dict[int, float]:
    """By step: the time since the previous step."""
    committed = result.events("step.committed", worker=worker)
    return {after["step"]: after["t"] - before["t"] for before, after in pairwise(committed)}


MODELS = {
    "bf16-compiled": ["--dtype", "bfloat16", "--compile"],
    "fp16": ["--dtype", "float16"],
    "bf16-autocast": ["--autocast", "bfloat16"],
    "fp16-autocast-with-grad-scaler": ["--autocast", "float16"],
    "checkpointing": ["--checkpointing", "plain"],
    "reentrant-checkpointing-of-the-body": ["--checkpointing", "reentrant"],
    "channels-last": ["--channels-last"],
    "cuda-graphs": ["--graphs", "--one-size"],
    "two-streams": ["--two-streams"],
}


def model_through_a_death(model: str, device: str) -> None:
    with DeviceStage(*MODELS[model], device=device, gates=[8], workers=3) as cluster:
        cluster.wait_at_gate(8, "w0", "w1", "w2")
        cluster.kill("w1")
        cluster.open_gate(8)
        cluster.wait_settled(2)
        result = cluster.finish_undisturbed()
    assert len(result.outputs) == 2


def whole_reentrant_checkpointing_refused(device: str) -> None:
    with DeviceStage("--checkpointing", "all", device=device, workers=2) as cluster:
        result = cluster.finish(check=False)
        said = cluster.log("w0") + cluster.log("w1")
    assert not result.is_good
    assert "all gradients came from segments of reentrant activation checkpointing" in said
