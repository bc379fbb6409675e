"""Records of a fit, for programs: one JSON object per line in metrics.jsonl, and the same to the coordinator.

    {"time": 1700000000.0, "kind": "training", "batches": 100, "epochs": 1, "records": 6400, "metrics": {"loss": 0.42}}

Kinds: "begin", "training", "validation", "checkpoint", "system", "end", "failure". Always valid JSON: a number that is
not finite is null, and its metric is named in "nonfinite". After a "begin" at some batch, earlier lines of later
batches are void; of two lines of one kind and batch, the later one counts.

Each line is appended with one write, so another process can continue the file, even after a kill -9. A thread sends
the records to the coordinator, so training never waits for it. While the coordinator is unreachable, the newest records
are kept and sent later; records that were never sent are counted and reported at the end. The file has them all."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from everstep import env
from everstep.client.calls import Coordinator
from everstep.errors import Abandoned, EverstepError
from everstep.pytorch.progress import BatchProgress
from everstep.retry import patiently
from everstep.storage import private_file
from everstep.wire import MetricReport, MetricReports

log = logging.getLogger(__name__)

FILE = "metrics.jsonl"
MOST_WAITING = 1000
MOST_AT_ONCE = 100
CLOSE_S = 5.0

_FIELDS = ("kind", "batches", "time", "epochs", "records")


def make_record(
    kind: str, progress: BatchProgress | None, metrics: Mapping[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """Ready for JSON. Metrics may hold tensors, arrays, lists and mappings of numbers."""
    found = {name: plain(value) for name, value in (metrics or {}).items()}
    nonfinite = [name for name, (_, is_finite) in found.items() if not is_finite]
    return {
        "time": time.time(),
        "kind": kind,
        "batches": progress.batches if progress else None,
        "epochs": progress.epochs if progress else None,
        "records": progress.records if progress else None,
        **({"metrics": {name: value for name, (value, _) in found.items()}} if metrics is not None else {}),
        **({"nonfinite": nonfinite} if nonfinite else {}),
        **{name: plain(value)[0] for name, value in more.items()},
    }


def plain(value: Any) -> tuple[Any, bool]:
    """The value for JSON, and whether all its numbers are finite."""
    if hasattr(value, "tolist"):  # a tensor or array, of one number or many
        value = value.tolist()
    if isinstance(value, float):
        return (value, True) if math.isfinite(value) else (None, False)
    if value is None or isinstance(value, bool | int | str):
        return value, True
    if isinstance(value, Mapping):
        values = {str(name): plain(each) for name, each in value.items()}
        return {name: each for name, (each, _) in values.items()}, all(is_finite for _, is_finite in values.values())
    if isinstance(value, list | tuple | set | frozenset):
        items = [plain(each) for each in value]
        return [each for each, _ in items], all(is_finite for _, is_finite in items)
    return str(value), True


class RecordFile:
    """Opened with the first line, so only a process that writes has it open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._lock = threading.Lock()

    def append(self, record: Mapping[str, Any]) -> None:
        line = json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        with self._lock:
            if self._descriptor is None:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._descriptor = private_file.descriptor(self._path, os.O_RDWR | os.O_APPEND)
            os.write(self._descriptor, line if _ends_whole(self._descriptor) else b"\n" + line)

    def close(self) -> None:
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None


def _ends_whole(descriptor: int) -> bool:
    """The last writer may have been killed in the middle of a line, or the disk was full."""
    size = os.fstat(descriptor).st_size
    return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"


# --- to the coordinator ---


def open_job_metrics() -> JobMetrics | None:
    """To this job's coordinator; None outside a job."""
    url, token = env.coordinator_url(), env.token()
    return JobMetrics(Coordinator(url, token, env.job())) if url and token else None


class JobMetrics:
    """Owns the coordinator's client. Call it with each record, and close it at the end."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._waiting: queue.Queue[Any] = queue.Queue()  # of reports; None, once closed
        self._has_given_up = threading.Event()
        self._thread: threading.Thread | None = None
        self._lost: list[str] = []  # for each lost record, why
        self._is_said = False

    def __call__(self, record: Mapping[str, Any]) -> None:
        if self._waiting.qsize() >= MOST_WAITING:
            with contextlib.suppress(queue.Empty):  # all of them are under way by now
                self._waiting.get_nowait()
                self._lost.append(f"more than {MOST_WAITING} were waiting")
                self._waiting.task_done()
        self._waiting.put(report_of(record))
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_all, name="job-metrics", daemon=True)
            self._thread.start()

    def close(self, deadline_s: float = CLOSE_S) -> None:
        """Send the rest, for at most `deadline_s`; then report what was lost."""
        done = self._waiting.all_tasks_done
        with done:
            done.wait_for(lambda: not self._waiting.unfinished_tasks, deadline_s)
            self._lost += [f"not accepted within {deadline_s:g} s at the end"] * self._waiting.unfinished_tasks
        self._has_given_up.set()
        self._waiting.put(None)
        self._coordinator.close()
        if self._lost:
            log.warning("%d metric records did not reach the coordinator: %s", len(self._lost), self._lost[-1])

    def _send_all(self) -> None:
        while not self._has_given_up.is_set():
            reports = [self._waiting.get()]
            if reports[0] is None:
                return
            with contextlib.suppress(queue.Empty):
                while len(reports) < MOST_AT_ONCE:
                    reports.append(self._waiting.get_nowait())
            self._send(reports)
            for _ in reports:
                self._waiting.task_done()

    def _send(self, reports: Sequence[MetricReport]) -> None:
        """If they are refused, one by one, so that one refused record does not lose the others."""
        try:
            send = partial(self._coordinator.report_metrics, MetricReports(reports=list(reports)))
            patiently(send, math.inf, stop=self._has_given_up, say=self._say_once)
        except Abandoned:
            return
        except EverstepError as error:
            if len(reports) > 1:
                for each in reports:
                    self._send([each])
                return
            self._lost.append(error.message)

    def _say_once(self, why: str) -> None:
        if not self._is_said and not self._has_given_up.is_set():
            self._is_said = True
            log.warning("metrics wait for the coordinator: %s", why)


def report_of(record: Mapping[str, Any]) -> MetricReport:
    known = {name: record[name] for name in _FIELDS}
    facts = {name: value for name, value in record.items() if name not in (*_FIELDS, "metrics")}
    return MetricReport(**known, metrics=record.get("metrics", {}), facts=facts)
