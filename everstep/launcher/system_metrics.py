"""How busy a node and its workers are: processor, memory, network, and GPUs where NVIDIA's `pynvml` is installed.

A thread with a connection of its own samples and sends, so it is never in the way of a death's report; nothing here can
end a job. The step of a sample is its time of day in seconds. A core that is busy all the time counts as 1.0.
Linux only, from /proc; what a sample cannot read is left out of it."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from everstep.client.calls import Coordinator
from everstep.record.sender import MetricSender
from everstep.wire import MetricReport

log = logging.getLogger(__name__)

PERIOD_S = 10.0
_CLOSE_S = 0.5  # a sample that is not sent by then is not worth waiting for
_MB = 1 << 20
_TICK, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


class SystemSampler:
    """`pids`: of the node's workers by name; called by the thread."""

    def __init__(
        self,
        connect: Callable[[], Coordinator],
        agent: str,
        pids: Callable[[], Mapping[str, int]],
        *,
        period_s: float = PERIOD_S,
    ) -> None:
        self._connect, self._agent, self._pids, self._period_s = connect, agent, pids, period_s
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="system-metrics", daemon=True)

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._is_ending.set()
        if self._thread.ident is not None:
            self._thread.join(2 * _CLOSE_S)

    def _run(self) -> None:
        sender: MetricSender | None = None
        before = Counters(self._pids())
        while not self._is_ending.wait(self._period_s):
            now = Counters(self._pids())
            if sender is None:
                coordinator = self._connect()
                sender = MetricSender(coordinator, partial(coordinator.report_node_metrics, self._agent))
            for name, values in now.since(before, self._agent).items():
                sender(MetricReport(kind=f"system/{name}", step=int(time.time()), time=time.time(), values=values))
            before = now
        if sender is not None:
            sender.close(_CLOSE_S)


class Counters:
    """What the kernel counts, at one moment."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self.at = time.monotonic()
        self.busy_s = _node_busy_s()
        self.received, self.sent = _network_bytes()
        self.workers = {name: found for name, pid in pids.items() if (found := _process(pid)) is not None}

    def since(self, before: Counters, agent: str) -> dict[str, dict[str, Any]]:
        """By node and worker."""
        passed_s = max(1e-3, self.at - before.at)
        node = {
            "cpu_cores": (self.busy_s - before.busy_s) / passed_s,
            "memory_mb": _used_memory_mb(),
            "network_in_mb_per_s": (self.received - before.received) / _MB / passed_s,
            "network_out_mb_per_s": (self.sent - before.sent) / _MB / passed_s,
        }
        found: dict[str, dict[str, Any]] = {agent: node | gpu_values()}
        for name, (busy_s, memory_mb) in self.workers.items():
            found[name] = {"memory_mb": memory_mb}
            if name in before.workers:
                found[name]["cpu_cores"] = (busy_s - before.workers[name][0]) / passed_s
        return found


def _node_busy_s() -> float:
    user, nice, system, _idle, _wait, irq, softirq, *_ = map(
        int, Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / _TICK


def _used_memory_mb() -> float:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, available = (int(lines[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    return (total - available) / 1024


def _network_bytes() -> tuple[int, int]:
    """Received and sent, by all interfaces but the loopback."""
    rows = [line.split(":") for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    counts = [numbers.split() for name, numbers in rows if name.strip() != "lo"]
    return sum(int(each[0]) for each in counts), sum(int(each[8]) for each in counts)


def _process(pid: int) -> tuple[float, float] | None:
    """Seconds of processor time and resident megabytes; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return None
    return (int(fields[11]) + int(fields[12])) / _TICK, pages * _PAGE / _MB


def gpu_values() -> dict[str, float]:
    """Of all GPUs of the node; empty without NVIDIA's library."""
    values: dict[str, float] = {}
    with contextlib.suppress(Exception):  # not installed, or no driver: it raises its own errors
        import pynvml  # type: ignore[import-untyped,import-not-found,unused-ignore]

        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            values[f"gpu{index}_share"] = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            values[f"gpu{index}_memory_mb"] = pynvml.nvmlDeviceGetMemoryInfo(handle).used / _MB
    return values
