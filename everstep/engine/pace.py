"""How long this worker takes for a micro-batch, and for the sum and the update after it.

Medians over the last steps, so that a validation, a checkpoint or a hiccup between two steps does not count. The first
step of a generation is not measured: it includes the regroup, and whatever starts or compiles."""

from __future__ import annotations

from collections import deque
from statistics import median
from time import monotonic
from typing import Any

import torch

WINDOW = 10  # steps that a median is taken over …
LEAST_STEPS = 3  # … and the least number of them


class HostClock:
    def mark(self) -> Any:
        return monotonic()

    def between_s(self, first: Any, second: Any) -> float | None:
        """None: not known yet."""
        return float(second - first)


class DeviceClock(HostClock):
    """A GPU works while the host continues, so its own times count. They are read later, without waiting."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def between_s(self, first: Any, second: Any) -> float | None:
        return first.elapsed_time(second) / 1000 if first.query() and second.query() else None


def clock_of(device: torch.device) -> HostClock:
    return DeviceClock(device) if device.type == "cuda" else HostClock()


class MicroBatchPace:
    def __init__(self) -> None:
        self.clock = HostClock()
        self.micro_batch_s = 0.0  # including its data, without waits for other workers; 0: not known yet
        self.sum_s = 0.0  # from the end of the last micro-batch to the commit, including waits
        self._measured: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        self.forget_step()

    def forget_step(self) -> None:
        """Do not measure the step under way, such as the first of a generation."""
        self._began: Any = None  # the last commit
        self._done: tuple[Any, int] | None = None  # the end of this worker's micro-batches, and their number
        self._step: tuple[Any, Any, int, Any] | None = None  # to be measured: begin, end, number, and commit

    def computed(self, number: int) -> None:
        """This worker has computed all its micro-batches of a step; 0: some were empty, so the time says nothing."""
        if self._done is None:
            self._done = (self.clock.mark(), number)

    def committed(self) -> None:
        self._measure()  # the previous step, if on a device: this step's sum has waited for all of its work
        now = self.clock.mark()
        if self._began is not None and self._done is not None and self._done[1]:
            self._step = (self._began, *self._done, now)
            self._measure()
        self._began, self._done = now, None

    def _measure(self) -> None:
        if self._step is None:
            return
        began, done, number, committed = self._step
        work_s, sum_s = self.clock.between_s(began, done), self.clock.between_s(done, committed)
        if work_s is None or sum_s is None:
            return
        self._measured.append((work_s / number, sum_s))
        self._step = None
        if len(self._measured) >= LEAST_STEPS:
            self.micro_batch_s = median(each for each, _ in self._measured)
            self.sum_s = median(each for _, each in self._measured)
