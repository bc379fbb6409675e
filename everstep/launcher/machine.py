"""What this machine has for workers: GPUs and cores, as far as this process may use them. Without torch."""

from __future__ import annotations

import os
from pathlib import Path

from everstep import env


def gpu_names(devices: Path = Path("/dev")) -> list[str]:
    """GPUs by the names that CUDA_VISIBLE_DEVICES uses: those that it lists, or all NVIDIA devices if it is not set."""
    present = len(list(devices.glob("nvidia[0-9]*")))
    if (visible := env.visible_gpus()) is None:
        return [str(number) for number in range(present)]
    names = [name.strip() for name in visible.split(",")]
    return [name for name in names if name and not name.startswith("-")][:present]


def count_gpus(devices: Path = Path("/dev")) -> int:
    return len(gpu_names(devices))


def count_cpus() -> int:
    return len(os.sched_getaffinity(0))
