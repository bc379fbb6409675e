"""What this worker can sum with: its device and its version of NCCL."""

from __future__ import annotations

import socket

import torch
import torch.distributed as dist

from everstep import env
from everstep.engine.backend import BackendFacts


def backend_facts(
    worker: str, wish: str, device: torch.device, *, refusal: str = "", is_tried: bool = False
) -> BackendFacts:
    if device.type != "cuda":
        return BackendFacts(worker=worker, wish=wish, device=device.type, refusal=refusal, is_tried=is_tried)
    return BackendFacts(
        worker=worker,
        wish=wish,
        device=device.type,
        gpu=str(torch.cuda.get_device_properties(device).uuid),
        host=env.value("NCCL_HOSTID") or socket.gethostname(),
        nccl=".".join(map(str, torch.cuda.nccl.version())) if dist.is_nccl_available() else "",
        refusal=refusal,
        is_tried=is_tried,
    )
