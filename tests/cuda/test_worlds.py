"""Workers that share one GPU over NCCL: any number of them gives the bits of one; they come, are replaced, and go."""

from __future__ import annotations

import pytest
import torch

from everstep.engine.mean import divide
from lab import device_stories

CUDA = "cuda"

torch.cuda.init()  # here, because the driver's sockets stay open: no test should be blamed for them


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weight", [7.0, 43.0, 192.0, 0.3, 4099.0, 1e6])
def test_a_mean_has_the_same_bits_on_the_gpu_and_on_the_host(weight: float, dtype: torch.dtype) -> None:
    host = torch.randn(1 << 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    device = host.cuda()
    divide(host, weight)
    divide(device, weight)
    assert torch.equal(host, device.cpu())


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_several_workers_have_the_bits_of_one(workers: int) -> None:
    device_stories.undisturbed(CUDA, workers)


def test_eight_workers_have_the_bits_of_one() -> None:
    device_stories.undisturbed(CUDA, 8, "--micro-batches", 9)


def test_fast_sums_are_the_same_on_all_workers() -> None:
    device_stories.fast(CUDA, workers=3)


def test_a_newcomer_joins() -> None:
    device_stories.joined(CUDA)


def test_a_killed_worker_is_replaced() -> None:
    device_stories.replaced(CUDA)


def test_a_job_shrinks_to_one_and_grows_to_four() -> None:
    device_stories.shrunk_to_one_and_grown_to_four(CUDA)
