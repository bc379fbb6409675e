"""Medians of paired ratios with a bootstrap confidence interval: what survives a noisy machine."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    median: float
    low: float  # 95 % confidence interval of the median
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


def paired_ratio(ours: Sequence[float], theirs: Sequence[float], resamples: int = 2000) -> Ratio:
    """Round i of one against round i of the other, taken side by side."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(resamples))
    return Ratio(
        median=statistics.median(ratios),
        low=medians[int(0.025 * resamples)],
        high=medians[int(0.975 * resamples)],
    )
