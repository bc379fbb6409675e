"""How a job trains: what all its workers must have in common."""

from __future__ import annotations

from dataclasses import dataclass

from everstep.engine.arguments import check_count
from everstep.engine.backend import check_wish
from everstep.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Either a fixed number of micro-batches for all workers together, or (fast only) one for each worker."""

    num_micro_batches: int | None = None
    micro_batches_per_worker: int | None = None
    reduce: str = "exact"  # or "fast"
    backend: str | None = None  # how gradients travel; None: see StepWork.backend_wish
    seed: int = 0
    threads: int = 1  # of torch, in exact mode
    counts_empty_steps: bool = True  # a step in which no micro-batch had any weight is one

    def __post_init__(self) -> None:
        for micro_batches in (self.num_micro_batches, self.micro_batches_per_worker):
            if micro_batches is not None:
                check_count("micro_batches", micro_batches, of="micro-batches", code="micro-batches-not-positive")
        if self.reduce not in ("fast", "exact"):
            raise UsageError(
                f"reduce={self.reduce!r}", hint='use reduce="exact" or reduce="fast"', code="reduce-unknown"
            )
        if self.backend is not None:
            check_wish(self.backend)
        check_count("threads", self.threads, of="threads", code="threads-not-positive")

    @property
    def is_exact(self) -> bool:
        return self.reduce == "exact"

    def micro_batches(self, num_workers: int) -> int:
        """Of a step of this many workers."""
        return self.num_micro_batches or (self.micro_batches_per_worker or 0) * num_workers
