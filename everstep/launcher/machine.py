"""What this machine has for workers: GPUs and cores, as far as this process may use them. Without torch."""

from __future__ import annotations

import os
from pathlib import Path

from everstep import env


def count_gpus(devices: Path = Path("/dev")) -> int:
    """NVIDIA's device files, or fewer if CUDA_VISIBLE_DEVICES names fewer."""
    present = len(list(devices.glob("nvidia[0-9]*")))
    if (visible := env.visible_gpus()) is None:
        return present
    named = [name for name in visible.split(",") if name.strip() and not name.strip().startswith("-")]
    return min(present, len(named))


def count_cpus() -> int:
    return len(os.sched_getaffinity(0))
