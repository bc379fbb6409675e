"""How often any thread of this process waits for the GPU, from a trace of torch's profiler."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from everstep.events import emit

_BODY = "body of a micro-batch"
_WAITS = re.compile(
    r"cu(da)?(Stream|Event|Device|Ctx|Context)Synchronize|cu(da)?Memcpy(2D|3D|(DtoH|HtoD|DtoD)(_v2)?)?$"
)


class Trace:
    """Counts them in some steps; emits "synchronizations" with the counts by name at the end of the last step."""

    def __init__(self, is_wanted: bool, *, first: int, last: int) -> None:
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        self._profile = profile(activities=activities) if is_wanted else None
        self._first, self._last = first, last
        self._is_on = False

    def reach(self, step: int) -> None:
        if self._profile is None:
            return
        if not self._is_on and self._first <= step <= self._last:
            self._is_on = True
            self._profile.start()
        elif self._is_on and step > self._last:
            self._profile.stop()
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "trace.json"
                self._profile.export_chrome_trace(str(path))
                found = waits(json.loads(path.read_text())["traceEvents"])
            emit("synchronizations", steps=self._last - self._first + 1, waits=found, number=sum(found.values()))
            self._profile = None

    def body(self) -> AbstractContextManager[Any]:
        return record_function(_BODY) if self._profile is not None and self._is_on else nullcontext()


def waits(events: list[dict[str, Any]]) -> dict[str, int]:
    """From the first body to the end of the last: before and after, the profiler itself waits."""
    bodies = [each for each in events if each.get("name") == _BODY and each.get("cat") == "user_annotation"]
    begin, end = min(each["ts"] for each in bodies), max(each["ts"] + each["dur"] for each in bodies)
    calls = [each for each in events if each.get("cat") in ("cuda_runtime", "cuda_driver")]
    return dict(Counter(each["name"] for each in calls if begin <= each["ts"] <= end and _WAITS.match(each["name"])))
