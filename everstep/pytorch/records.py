"""metrics.jsonl: what a fit has found out, one JSON object per line, for programs.

    {"time": 1700000000.0, "kind": "training", "batches": 100, "epochs": 1, "records": 6400, "metrics": {"loss": 0.42}}

Kinds: "begin", "training", "validation", "checkpoint", "system", "end", "failure". Always valid JSON: a number that is
not finite is null, and its metric is named in "nonfinite". After a "begin" at some batch, earlier lines of later
batches are void; of two lines of one kind and batch, the later one counts.

Lines are appended whole, each at once: another process may go on with the file, also after a kill -9."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everstep.pytorch.units import BatchProgress
from everstep.storage import private_file

FILE = "metrics.jsonl"


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
    """As JSON has it, and whether all its numbers are finite."""
    if hasattr(value, "tolist"):  # a tensor or an array, also of one number
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
    """Opened with the first line, so that only who writes has it open."""

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
    """Whoever wrote before may have been killed in the middle of a line, or the disk was full."""
    size = os.fstat(descriptor).st_size
    return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
