"""What this process holds: threads, descriptors, and GPU memory (of all workers that share the GPU)."""

from __future__ import annotations

import gc
import os
import time

import torch

from everstep.events import emit

_SETTLE_S = 20.0


def held() -> dict[str, int]:
    gpu_mb = own_mb = 0
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        gpu_mb, own_mb = (total - free) >> 20, torch.cuda.memory_reserved() >> 20
    num_threads, num_descriptors = (len(os.listdir(f"/proc/self/{what}")) for what in ("task", "fd"))
    return {"threads": num_threads, "descriptors": num_descriptors, "gpu_mb": gpu_mb, "own_mb": own_mb}


def sample(step: int) -> None:
    emit("resources", step=step, **held())


def settle(step: int) -> None:
    """What was given up ends in the background: report what is held when that is over, or after a while."""
    gc.collect()
    deadline, least = time.monotonic() + _SETTLE_S, held()
    quiet_since = time.monotonic()
    while time.monotonic() < min(deadline, quiet_since + 2.0):
        time.sleep(0.05)
        now = held()
        if any(now[name] < least[name] for name in least):
            least, quiet_since = {name: min(now[name], least[name]) for name in least}, time.monotonic()
    emit("resources.settled", step=step, **least)
