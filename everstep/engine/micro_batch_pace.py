"""How long workers take for a micro-batch, data and all, as far as they do not wait for each other."""

from __future__ import annotations

import time

_MEMORY = 0.5  # of the average so far, against the newest step


class MicroBatchPace:
    """Of one generation."""

    def __init__(self) -> None:
        self.micro_batch_s = 0.0  # this worker's; 0: not known yet
        self.of_all: tuple[float, ...] = ()  # by rank, as of the last commit
        self._since: float | None = time.monotonic()  # the last commit, or the generation's beginning

    def micro_batches_done(self, number: int) -> None:
        """All of this worker's micro-batches of a step, and now it waits."""
        if self._since is not None and number:
            newest = (time.monotonic() - self._since) / number
            self.micro_batch_s = (
                newest if not self.micro_batch_s else _MEMORY * self.micro_batch_s + (1 - _MEMORY) * newest
            )
            self._since = None

    def committed(self, of_all: tuple[float, ...]) -> None:
        self.of_all = of_all
        self._since = time.monotonic()
