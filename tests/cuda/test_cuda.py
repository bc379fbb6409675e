"""Stories on a GPU: two workers share it over gloo. Collected only where there is one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from everstep.engine.mean import divide
from everstep.testing import Cluster

SCRIPT = Path(__file__).parent / "scripts" / "train_on_gpu.py"
NCCL_SCRIPT = SCRIPT.with_name("nccl_follows.py")
LOADER = ["--micro-batches", "6", "--batch-size", "32"]  # a global batch weighs 192, the short last one 50

torch.cuda.init()  # here, since the driver's sockets stay open: no test has left them behind


@pytest.fixture(scope="module")
def undisturbed_digest() -> str:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]


def test_two_workers_on_one_gpu_give_the_bits_of_one(undisturbed_digest: str) -> None:
    with Cluster(SCRIPT, workers=2) as cluster:
        assert cluster.finish().weights_digest == undisturbed_digest


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weight", [7.0, 50.0, 192.0, 0.3, 4099.0, 1e6])
def test_a_mean_has_the_same_bits_on_the_gpu_and_on_the_host(weight: float, dtype: torch.dtype) -> None:
    host = torch.randn(1 << 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    device = host.cuda()
    divide(host, weight)
    divide(device, weight)
    assert torch.equal(host, device.cpu())


@pytest.fixture(scope="module")
def digest_with_a_loader() -> str:
    """One worker divides on the GPU, several on the host."""
    done = subprocess.run([sys.executable, SCRIPT, *LOADER], capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]


@pytest.mark.parametrize("workers", [2, 3])
def test_weights_that_are_no_power_of_two_give_the_bits_of_one_worker(workers: int, digest_with_a_loader: str) -> None:
    with Cluster(SCRIPT, LOADER, workers=workers) as cluster:
        assert cluster.finish().weights_digest == digest_with_a_loader


def test_a_killed_worker_does_not_change_the_weights_on_a_gpu(undisturbed_digest: str) -> None:
    with Cluster(SCRIPT, ["--micro-batch-s", "0.02"], workers=2) as cluster:
        cluster.wait("step.committed", step=10, worker="w1")
        cluster.kill("w1")

        result = cluster.finish()

    assert result.weights_digest == undisturbed_digest
    assert result.events("regroup.settled", size=1)


def test_a_newcomer_gets_the_state_on_a_gpu(undisturbed_digest: str) -> None:
    with Cluster(SCRIPT, ["--micro-batch-s", "0.2"], workers=1) as cluster:
        cluster.wait("step.committed", step=2)
        (newcomer,) = cluster.add()
        cluster.wait("transfer.received", worker=newcomer)

        assert cluster.finish().weights_digest == undisturbed_digest


def test_nccl_is_aborted_and_formed_anew_with_the_world() -> None:
    done = subprocess.run([sys.executable, NCCL_SCRIPT], capture_output=True, text=True, check=True)

    assert done.stdout.split("\n")[:3] == ["1 2.0", "2 2.0", "3 2.0"]
