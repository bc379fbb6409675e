"""How busy a node and its workers are: processor, memory, network, and GPUs where NVIDIA's `pynvml` is installed.

A thread with a connection of its own samples and sends, so it is never in the way of a death's report; nothing here can
end a job. The step of a sample is its time of day in seconds. A core that is busy all the time counts as 1.0; MB are
10^6 bytes. The coordinator says how often to sample: it knows the job's setting and how much it has. Linux only, from
/proc; a process that has ended is left out."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from everstep.client.calls import Coordinator
from everstep.errors import EverstepError, Refused, TemporaryError
from everstep.wire import MetricReport, MetricReports
from everstep.wire.metrics import MOST_REPORTS, SYSTEM

log = logging.getLogger(__name__)

FIRST_S = 10.0  # until the first sample; the coordinator's reply says when the next one is due
_CLOSE_S = 1.0  # a sample that is not sent by then is not worth waiting for
_MOST_WAITING = 10_000  # reports; the oldest are dropped
_MB = 1_000_000
_TICK, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


class SystemSampler:
    """`pids`: of the node's workers by name; called by the thread, as is `say`."""

    def __init__(
        self,
        connect: Callable[[], Coordinator],
        agent: str,
        pids: Callable[[], Mapping[str, int]],
        *,
        say: Callable[[str], None],
        first_s: float = FIRST_S,
    ) -> None:
        self._connect, self._agent, self._pids, self._say = connect, agent, pids, say
        self._interval_s = first_s  # then as often as the coordinator says
        self._waiting: deque[MetricReport] = deque(maxlen=_MOST_WAITING)
        self._num_sampled = self._num_sent = 0
        self._gpus = GpuReader(say)
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="system-metrics", daemon=True)

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._is_ending.set()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        try:
            with self._connect() as coordinator:
                self._sample_on(coordinator)
        except EverstepError as error:  # refused
            self._say(f"stopped sampling system metrics on {self._agent}: {error.message}")
        except (OSError, ValueError) as error:  # of /proc
            self._say(f"stopped sampling system metrics on {self._agent}: {type(error).__name__}: {error}")
        if num_lost := self._num_sampled - self._num_sent:
            log.info("%d system metric reports did not reach the coordinator", num_lost)

    def _sample_on(self, coordinator: Coordinator) -> None:
        before = Counters(self._pids())
        while self._interval_s and not self._is_ending.wait(self._interval_s):
            now = Counters(self._pids())
            at = time.time()
            for name, values in now.since(before, self._agent, self._gpus.values()).items():
                self._waiting.append(MetricReport(kind=f"{SYSTEM}{name}", step=int(at), time=at, values=values))
                self._num_sampled += 1
            before = now
            self._send(coordinator)

    def _send(self, coordinator: Coordinator) -> None:
        """While the coordinator is away, the newest samples wait."""
        while self._waiting:
            some = list(islice(self._waiting, MOST_REPORTS))
            try:
                kept = coordinator.report_node_metrics(self._agent, MetricReports(reports=some))
            except (TemporaryError, Refused) as error:
                if isinstance(error, TemporaryError) or error.code == "node-unknown":  # our first report is under way
                    return
                raise
            self._num_sent += len(some)
            self._interval_s = kept.next_s
            for _ in some:
                self._waiting.popleft()


class Counters:
    """What the kernel counts, at one moment."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self.at = time.monotonic()
        self.busy_s = _node_busy_s()
        self.received, self.sent = _network_bytes()
        self.workers = {name: found for name, pid in pids.items() if (found := _process(pid)) is not None}

    def since(self, before: Counters, agent: str, gpus: dict[str, float]) -> dict[str, dict[str, Any]]:
        """By node and worker."""
        passed_s = max(1e-3, self.at - before.at)
        node = {
            "cpu_cores": (self.busy_s - before.busy_s) / passed_s,
            "memory_mb": _used_memory_mb(),
            # A network interface that disappears takes what it has counted along.
            "network_in_mb_per_s": max(0, self.received - before.received) / _MB / passed_s,
            "network_out_mb_per_s": max(0, self.sent - before.sent) / _MB / passed_s,
        }
        found: dict[str, dict[str, Any]] = {agent: node | gpus}
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
    return (total - available) * 1024 / _MB


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


class GpuReader:
    """Of all GPUs of the node; nothing without NVIDIA's library, and after an error, which is said once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._library: Any = None
        self._is_usable = True

    def values(self) -> dict[str, float]:
        if not self._is_usable:
            return {}
        try:
            return self._read()
        except ImportError:
            self._is_usable = False
        except self._library.NVMLError as error:
            self._is_usable = False
            self._say(f"cannot sample GPUs: {error}")
        return {}

    def _read(self) -> dict[str, float]:
        if self._library is None:
            import pynvml  # type: ignore[import-untyped,import-not-found,unused-ignore]

            self._library = pynvml
            pynvml.nvmlInit()
        nvml, values = self._library, dict[str, float]()
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            values[f"gpu{index}_share"] = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            values[f"gpu{index}_memory_mb"] = nvml.nvmlDeviceGetMemoryInfo(handle).used / _MB
        return values
