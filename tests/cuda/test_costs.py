"""What training over NCCL costs: the host waits for the GPU once per step, nothing is left behind after a regroup, and
no step is long when a newcomer has to compile its model first."""

from __future__ import annotations

from statistics import median

from lab import device_stories
from lab.device_stage import DeviceStage

CUDA = "cuda"


def test_the_host_waits_once_per_step() -> None:
    """In any thread of a worker, in ten steps in a row."""
    with DeviceStage("--steps", 24, "--profile", device=CUDA, workers=2) as cluster:
        result = cluster.finish_undisturbed()
    told = result.events("synchronizations")
    print(*(event["waits"] for event in told), sep="\n")
    assert {event["worker"] for event in told} == {"w0", "w1"}
    for event in told:
        assert event["number"] == event["steps"], event["waits"]


def test_thirty_regroups_leak_nothing() -> None:
    """A communicator takes half a second to die: at most two are dying at any time."""
    print(device_stories.thirty_regroups_leak_nothing(CUDA, every=3, micro_batch_s=0.1))


def test_a_newcomer_that_compiles_its_model_holds_up_nobody() -> None:
    """It has compiled for all shapes, because micro-batches have one size."""
    slow = {"MICRO_BATCH_S": "0.2", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    args = ["--steps", 90, "--dtype", "bfloat16", "--compile", "--one-size"]
    with DeviceStage(*args, device=CUDA, workers=2, env=slow) as cluster:
        cluster.wait("step.committed", worker="w0", step=8)
        (newcomer,) = cluster.add()
        cluster.wait("regroup.settled", worker=newcomer, size=3)
        result = cluster.finish_undisturbed()
    transfer_s = result.events("transfer.sent")[-1]["t"] - result.events("transfer.started")[-1]["t"]
    for worker in ("w0", "w1"):
        seconds = [value for step, value in device_stories.step_seconds(result, worker).items() if step > 2]
        usual_s, longest_s = median(seconds[:6]), max(seconds)
        print(f"{worker}: usually {usual_s:.3f} s, longest {longest_s:.3f} s, transfer {transfer_s:.3f} s")
        assert longest_s <= 2 * usual_s + transfer_s
