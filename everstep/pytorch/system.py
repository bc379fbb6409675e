"""What the machine does while it trains: a sample each second, as a record of kind "system".

From /proc and torch alone. Shares are those of the time since the last sample; 1.0 is one core, or a whole GPU."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

PERIOD_S = 1.0
_MB = 1 << 20


def cpu_seconds() -> float:
    """Of this process, with all its threads and the children that it has waited for."""
    return sum(os.times()[:4])


def machine_cpu_seconds() -> float:
    """Of all processes."""
    user, nice, system, _idle, _wait, irq, softirq, *_ = map(
        int, Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def memory_mb() -> dict[str, float]:
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    available = next(
        line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:")
    )
    return {"memory_mb": resident / _MB, "machine_free_memory_mb": int(available.split()[1]) / 1024}


def gpu_facts() -> dict[str, float]:
    """Of this worker's GPU, if it uses one; how busy it is, if torch can tell."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return {}
    free, total = torch.cuda.mem_get_info()
    facts = {"gpu_memory_mb": torch.cuda.memory_allocated() / _MB, "gpu_used_memory_mb": (total - free) / _MB}
    try:
        facts["gpu_share"] = torch.cuda.utilization() / 100
    except Exception:  # needs a package of NVIDIA's, which raises errors of its own
        pass
    return facts


class SystemSampler:
    """A thread that hands a sample to `tell` each second, from `with` to its end."""

    def __init__(self, tell: Callable[[Mapping[str, Any]], None], *, period_s: float = PERIOD_S) -> None:
        self._tell, self._period_s = tell, period_s
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._sample_all, name="system-sampler", daemon=True)

    def __enter__(self) -> SystemSampler:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_ending.set()
        self._thread.join()

    def _sample_all(self) -> None:
        then, own_s, all_s = time.monotonic(), cpu_seconds(), machine_cpu_seconds()
        while not self._is_ending.wait(self._period_s):
            now, own_now_s, all_now_s = time.monotonic(), cpu_seconds(), machine_cpu_seconds()
            shares = {
                "cpu_share": (own_now_s - own_s) / (now - then),
                "machine_cpu_share": (all_now_s - all_s) / (now - then),
            }
            self._tell(shares | memory_mb() | gpu_facts())
            then, own_s, all_s = now, own_now_s, all_now_s
