"""How a job trains: what all its workers must have in common."""

from __future__ import annotations

from dataclasses import dataclass

from everstep.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Either a fixed number of leaves for all workers together, or (fast only) one for each worker."""

    num_leaves: int | None = None
    leaves_per_worker: int | None = None
    reduce: str = "exact"  # or "fast"
    seed: int = 0
    threads: int = 1  # of torch, in exact mode
    is_balanced: bool = False  # quick workers get more leaves
    counts_empty_steps: bool = True  # a step in which no leaf had any weight is one

    def __post_init__(self) -> None:
        for leaves in (self.num_leaves, self.leaves_per_worker):
            if leaves is not None and leaves < 1:
                raise UsageError(f"leaves={leaves}: a global batch has at least one leaf", hint="use leaves=1 or more")
        if self.reduce not in ("fast", "exact"):
            raise UsageError(f"reduce={self.reduce!r} is not known", hint='use reduce="exact" or reduce="fast"')
        if self.threads < 1:
            raise UsageError(
                f"threads={self.threads}: computing takes at least one thread", hint="use threads=1 or more"
            )

    @property
    def is_exact(self) -> bool:
        return self.reduce == "exact"

    def leaves(self, num_workers: int) -> int:
        """Of a step of so many workers."""
        return self.num_leaves or (self.leaves_per_worker or 0) * num_workers
