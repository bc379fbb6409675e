"""The order of one attempt's work on a device: a separate stream next to backward's. On the CPU, there is nothing to
order."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterator

import torch


class Lane:
    """For the CPU, where these methods do nothing; `CudaLane` is for GPUs."""

    def __init__(self, device: torch.device, num_marks: int) -> None:
        self.device, self.num_marks = device, num_marks

    def mark(self, number: int) -> None:
        """Called by the script's thread: `follow` will wait for the work queued on its current stream so far."""

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Operations inside are queued on this lane."""
        yield

    def follow(self, number: int) -> None:
        """Work queued on this lane from now on comes after the mark."""

    def finish(self) -> None:
        """Make the host wait for all queued work: its one wait in a step."""

    @property
    def is_idle(self) -> bool:
        return True


class CudaLane(Lane):
    def __init__(self, device: torch.device, num_marks: int) -> None:
        super().__init__(device, num_marks)
        self._stream = torch.cuda.Stream(device)
        self._marks = [torch.cuda.Event() for _ in range(num_marks)]
        self._end = torch.cuda.Event(blocking=True)

    def mark(self, number: int) -> None:
        self._marks[number].record(torch.cuda.current_stream(self.device))

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            yield

    def follow(self, number: int) -> None:
        self._stream.wait_event(self._marks[number])

    def finish(self) -> None:
        self._end.record(self._stream)
        self._end.synchronize()

    @property
    def is_idle(self) -> bool:
        return self._stream.query()


_idle: dict[tuple[torch.device, int], list[Lane]] = defaultdict(list)
_idle_lock = threading.Lock()


def borrow_lane(device: torch.device, num_marks: int = 0) -> Lane:
    """A lane, until it is given back. Torch reuses memory only on the stream that it was allocated on, so there should
    be few streams."""
    with _idle_lock:
        idle = _idle[device, num_marks]
        if idle:
            return idle.pop()
    return CudaLane(device, num_marks) if device.type == "cuda" else Lane(device, num_marks)


def give_back_lane(lane: Lane) -> None:
    """Only when nothing is queued on it anymore."""
    with _idle_lock:
        _idle[lane.device, lane.num_marks].append(lane)
