"""The device of a benchmark's worker: the CPU, a GPU of its own, or one that it shares with other workers.

NCCL refuses two ranks on one GPU unless they seem to be on different hosts. So workers that share a GPU each get their
own host ID and talk over the loopback interface. Their figures do not show how fast NVLink or InfiniBand is."""

from __future__ import annotations

import os

import torch


def own_device(kind: str, num_workers: int) -> torch.device:
    """The device of this worker, by its rank. Call it before anything else uses CUDA."""
    if kind == "cpu":
        return torch.device("cpu")
    num_gpus = torch.cuda.device_count()
    if not num_gpus:
        raise SystemExit("--device cuda, but torch sees no GPU here: install a torch built for CUDA, or use a GPU node")
    if num_gpus < num_workers:
        os.environ |= {"NCCL_HOSTID": f"host{os.getpid()}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    device = torch.device("cuda", int(os.environ["RANK"]) % num_gpus)
    torch.cuda.set_device(device)
    return device
