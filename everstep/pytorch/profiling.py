"""torch.profiler around the requested batches, with traces for TensorBoard; and samples of the system each second.

Every worker profiles itself and writes its own files. Without a last batch, a trace is written every 100 batches: it is
held in memory until then. System samples come from /proc and torch alone. A share is that of the time since the last
sample; 1.0 is one core, or a whole GPU."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerAction, profile, tensorboard_trace_handler

from everstep import env
from everstep.errors import UsageError

BATCHES_PER_TRACE = 100
SAMPLE_PERIOD_S = 1.0
_MB = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfilerSettings:
    """
    sync_timings: wait for the GPU after each batch, so its work counts for that batch.
    begin_on_batch, end_after_batch: the first and last batch to profile, counted from 0; None: until the end.
    arguments: for torch.profiler.profile."""

    is_enabled: bool = False
    sync_timings: bool = True
    begin_on_batch: int = 0
    end_after_batch: int | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def is_wanted(self, batch: int) -> bool:
        is_before_end = self.end_after_batch is None or batch <= self.end_after_batch
        return self.is_enabled and batch >= self.begin_on_batch and is_before_end

    def __post_init__(self) -> None:
        begin, end = self.begin_on_batch, self.end_after_batch
        if begin < 0 or (end is not None and end < begin):
            raise UsageError(
                f"there is no batch between begin_on_batch={begin} and end_after_batch={end}",
                hint="both count from 0 and are included: begin_on_batch=10, end_after_batch=19",
                code="no-batch-to-profile",
            )


def profiler_arguments(*args: Any, **kwargs: Any) -> ProfilerSettings:
    """For context.set_profiler: the arguments of torch.profiler.profile, whose schedule selects the batches."""
    if args:
        raise UsageError(
            f"set_profiler got {len(args)} arguments without names",
            hint="torch.profiler.profile takes keyword arguments: set_profiler(activities=[…], schedule=…)",
            code="profiler-arguments-without-names",
        )
    return ProfilerSettings(is_enabled=True, arguments=kwargs)


class Profiler:
    """Call `step` before every batch, and `close` at the end."""

    def __init__(self, settings: ProfilerSettings, folder: Path) -> None:
        self._settings, self._folder = settings, folder
        self._profile: profile | None = None

    def step(self, batch: int) -> None:
        """The batch with this number comes next."""
        settings = self._settings
        if self._profile is None and not settings.is_wanted(batch):
            return
        if settings.sync_timings and torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        if not settings.is_wanted(batch):
            self.close()
        elif self._profile is None:
            self._profile = self._begin()
        else:
            self._profile.step()

    def _begin(self) -> profile:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        usual: dict[str, Any] = {"on_trace_ready": tensorboard_trace_handler(str(self._folder), env.worker() or None)}
        if self._settings.end_after_batch is None:
            usual["schedule"] = _save_each_trace
        profiler = profile(**(usual | dict(self._settings.arguments)))
        profiler.start()
        return profiler

    def close(self) -> None:
        """Write the trace."""
        profiler, self._profile = self._profile, None
        if profiler is not None:
            profiler.stop()


def _save_each_trace(batch: int) -> ProfilerAction:
    is_last = batch % BATCHES_PER_TRACE == BATCHES_PER_TRACE - 1
    return ProfilerAction.RECORD_AND_SAVE if is_last else ProfilerAction.RECORD


# --- samples of the system ---


def cpu_seconds() -> float:
    """Of this process, with its threads and the children it has waited for."""
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
    """Of this worker's GPU, if it uses one; and how busy it is, if torch knows."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return {}
    free, total = torch.cuda.mem_get_info()
    facts = {"gpu_memory_mb": torch.cuda.memory_allocated() / _MB, "gpu_used_memory_mb": (total - free) / _MB}
    try:
        facts["gpu_share"] = torch.cuda.utilization() / 100
    except Exception:  # needs NVIDIA's package, which raises its own errors
        pass
    return facts


@contextlib.contextmanager
def sampling(report: Callable[[Mapping[str, Any]], None], *, period_s: float = SAMPLE_PERIOD_S) -> Iterator[None]:
    """Meanwhile, a thread passes a sample to `report` each second."""
    is_ending = threading.Event()
    thread = threading.Thread(target=_sample, args=(report, period_s, is_ending), name="system-sampler", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_ending.set()
        thread.join()


def _sample(report: Callable[[Mapping[str, Any]], None], period_s: float, is_ending: threading.Event) -> None:
    then, own_s, all_s = time.monotonic(), cpu_seconds(), machine_cpu_seconds()
    while not is_ending.wait(period_s):
        now, own_now_s, all_now_s = time.monotonic(), cpu_seconds(), machine_cpu_seconds()
        shares = {
            "cpu_share": (own_now_s - own_s) / (now - then),
            "machine_cpu_share": (all_now_s - all_s) / (now - then),
        }
        report(shares | memory_mb() | gpu_facts())
        then, own_s, all_s = now, own_now_s, all_now_s
