"""Records of a fit, for programs: one JSON object per line in metrics.jsonl, and the same to the coordinator.

    {"time": 1700000000.0, "kind": "training", "batches": 100, "epochs": 1, "records": 6400, "metrics": {"loss": 0.42}}

Kinds: "begin", "training", "validation", "checkpoint", "system", "end", "failure". Always valid JSON: a number that is
not finite is null, and its metric is named in "nonfinite". After a "begin" at some batch, earlier lines of later
batches are void; of two lines of one kind and batch, the later one counts.

Each line is appended with one write, so another process can continue the file, even after a kill -9."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everstep.pytorch.progress import BatchProgress
from everstep.record.numbers import plain, split
from everstep.storage import private_file
from everstep.wire import MetricReport

FILE = "metrics.jsonl"

_NOT_DETAILS = ("kind", "batches", "time", "epochs", "records", "metrics", "nonfinite", "batch_metrics")


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


def report_of(record: Mapping[str, Any], metrics: Mapping[str, Any] | None, generation: int) -> MetricReport:
    """The same as a report: `metrics` as they were returned, because the record does not tell NaN from infinity."""
    values, details = split(metrics or {})
    rest = {name: value for name, value in record.items() if name not in _NOT_DETAILS}
    position = {name: record[name] for name in ("epochs", "records") if record[name] is not None}
    if record["kind"] == "training":
        values = {**values, **position}
    elif not values:
        rest |= position
    return MetricReport(
        kind=record["kind"],
        step=record["batches"],
        time=record["time"],
        generation=generation,
        values=values,
        details={**details, **rest},
    )
