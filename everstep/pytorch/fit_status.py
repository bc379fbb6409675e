"""Where a fit stands, and how that reads. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everstep.pytorch.units import BatchProgress, Epoch, Record, Seconds, TrainUnit


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    progress: BatchProgress
    length: TrainUnit
    length_batches: int | None  # None: not known
    loss: str = ""
    samples_per_s: float | None = None
    eta_s: float | None = None
    validation: str = ""  # the last one
    best: str = ""  # checkpoint
    doing: str = ""  # when it is not training

    @property
    def share(self) -> float:
        """What part of it is done."""
        if self.length_batches:
            return min(1.0, self.progress.batches / self.length_batches)
        return self.length.share(self.progress)


def parts_of(status: Status) -> list[str]:
    """["batch 100/937", "epoch 0", "loss 0.4213", "1,234 samples/s", "eta 0:01:10"], as far as known."""
    progress, length = status.progress, status.length
    total = f"/{status.length_batches}" if status.length_batches else ""
    epochs = f"/{length.value}" if isinstance(length, Epoch) else ""
    parts = [f"batch {progress.batches}{total}", f"epoch {progress.epochs}{epochs}"]
    if isinstance(length, Record):
        parts.append(f"record {progress.records:,}/{length.value:,}")
    if isinstance(length, Seconds):
        assert isinstance(length.value, int | float)
        parts.append(f"{clock(progress.seconds)} of {clock(length.value)}")
    parts.append(status.loss)
    if status.samples_per_s is not None:
        parts.append(f"{rate(status.samples_per_s)} samples/s")
    if status.doing:
        parts.append(status.doing)
    elif status.eta_s is not None:
        parts.append(f"eta {clock(status.eta_s)}")
    return [part for part in parts if part]


def shown_loss(metrics: Mapping[str, Any]) -> str:
    """The metric that stands for training: "loss" if there is one, else the first that is a number."""
    numbers = {name: value for name, value in metrics.items() if is_number(value)}
    for name in ("loss", *numbers):
        if name in numbers:
            return f"{name} {number(float(numbers[name]))}"
    return ""


def shown_metrics(metrics: Mapping[str, Any]) -> str:
    """Those that are numbers: "accuracy 0.9312, loss 0.2145"."""
    return ", ".join(f"{name} {number(float(value))}" for name, value in metrics.items() if is_number(value))


def is_number(value: Any) -> bool:
    """A tensor or an array of one number is one too."""
    if isinstance(value, bool):
        return False
    return isinstance(value, int | float) or (hasattr(value, "tolist") and getattr(value, "ndim", None) == 0)


def number(value: float) -> str:
    """Short, with the digits that matter: 0.4213, 12.35, 3.2e-05."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    if 1e-3 <= abs(value) < 1e6:
        return f"{value:,.4f}" if abs(value) < 10 else f"{value:,.2f}"
    return f"{value:.2e}"


def rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.1f}"


def clock(seconds: float) -> str:
    """70 → "0:01:10"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days}d ' if days else ''}{hours}:{minutes:02}:{rest:02}"
