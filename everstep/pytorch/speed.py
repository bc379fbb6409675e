"""How fast training is and when it will end: by the time that went into batches, not into validating or saving.

Pure: time comes in as an argument."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from everstep.pytorch.units import BatchProgress, Record, Seconds, TrainUnit

OVER_S = 10.0  # the rates are those of so many last seconds of training
_GRAIN_S = OVER_S / 50


@dataclass(frozen=True, kw_only=True, slots=True)
class _SpeedMark:
    training_s: float = 0.0
    batches: int = 0
    samples: int = 0


class FitSpeed:
    def __init__(self) -> None:
        self._since: float | None = None  # when the batch under way began
        self._training_s, self._batches, self._samples = 0.0, 0, 0
        self._marks = deque([_SpeedMark()])

    def skip_to(self, now: float) -> None:
        """What has passed since the last batch was not training."""
        self._since = now

    def batch(self, now: float, num_samples: int) -> None:
        """One more, with so many samples of all workers together."""
        self._batches += 1
        self._samples += num_samples
        if self._since is None:  # nobody knows when it began
            self._marks[0] = _SpeedMark(batches=self._batches, samples=self._samples)
        else:
            self._training_s += now - self._since
        self._since = now
        if self._training_s - self._marks[-1].training_s >= _GRAIN_S:
            self._marks.append(self._now())
            while self._training_s - self._marks[1].training_s >= OVER_S:
                self._marks.popleft()

    def _now(self) -> _SpeedMark:
        return _SpeedMark(training_s=self._training_s, batches=self._batches, samples=self._samples)

    @property
    def batches_per_s(self) -> float | None:
        """None: not known yet."""
        passed_s = self._training_s - self._marks[0].training_s
        return (self._batches - self._marks[0].batches) / passed_s if passed_s > 0 else None

    @property
    def samples_per_s(self) -> float | None:
        passed_s = self._training_s - self._marks[0].training_s
        return (self._samples - self._marks[0].samples) / passed_s if passed_s > 0 else None


def remaining_s(pace: FitSpeed, length: TrainUnit, length_batches: int | None, progress: BatchProgress) -> float | None:
    """Of training, until the length is reached. None: not known."""
    assert isinstance(length.value, int | float)
    if isinstance(length, Seconds):
        return max(0.0, length.value - progress.seconds)
    if isinstance(length, Record) and pace.samples_per_s:
        return max(0.0, length.value - progress.records) / pace.samples_per_s
    if length_batches is not None and pace.batches_per_s:
        return max(0, length_batches - progress.batches) / pace.batches_per_s
    return None
