"""What a worker needs, as a function of the number of workers in its world. Pure.

Straight lines above what benchmarks/footprint.py measured in worlds of 2, 4, 8 and 16 workers, rounded up. To fit them
again, follow its docstring and change only the three lines here. A test compares them with a real world. While a world
regroups, the connections of two groups are open; that is included. Not included: the model, its data, the processes of
its loaders, and the threads of torch and its libraries."""

from __future__ import annotations

import math
from dataclasses import dataclass

SHARE = 0.8  # of a limit; workers that need more get a warning


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """What one worker needs of a resource."""

    fixed: int
    per_worker: int  # of the world

    def at(self, world_size: int) -> int:
        return self.fixed + self.per_worker * world_size

    def largest_world(self, limit: float) -> float:
        """The largest world that a worker can be part of without a warning; 0: none."""
        left = SHARE * limit - self.fixed
        if not self.per_worker:
            return math.inf if left >= 0 else 0
        return max(0, math.floor(left / self.per_worker)) if left < math.inf else math.inf


FILES = Need(fixed=28, per_worker=5)
THREADS = Need(fixed=12, per_worker=0)
MEMORY_BYTES = Need(fixed=24 << 20, per_worker=1 << 18)


def markdown() -> str:
    """The table in docs/doctor.md."""
    rows = [
        f"| {size:,} | {FILES.at(size):,} | {THREADS.at(size)} | {math.ceil(MEMORY_BYTES.at(size) / (1 << 20))} MB |"
        for size in (2, 16, 128, 1024)
    ]
    head = ["| workers in the world | open files | threads | memory |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *rows, ""])
