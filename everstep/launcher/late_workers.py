"""Say which workers a node waits for: a worker or the job has ended here, and these should have ended as well.

Once after each end, and not at once: most follow within seconds. `decisions` finds the words."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from everstep.launcher.decisions import TOLD_AFTER_S, whom_we_wait_for
from everstep.wire import JobView


class LateWorkers:
    def __init__(self, agent: str, say: Callable[[str], None]) -> None:
        self._agent, self._say = agent, say
        self._ended_at = 0.0  # when the last thing ended here …
        self._told = ""  # … and the line said since

    def note_end(self) -> None:
        self._ended_at, self._told = time.monotonic(), ""

    def is_due(self) -> bool:
        """By any thread."""
        return time.monotonic() - self._ended_at >= TOLD_AFTER_S and not self._told

    def tell(self, view: JobView, running: Mapping[str, int], *, is_regrouping: bool) -> None:
        """`running`: workers here and their process IDs."""
        self._told = whom_we_wait_for(
            view,
            agent=self._agent,
            running=running,
            is_regrouping=is_regrouping,
            since_s=time.monotonic() - self._ended_at,
        )
        if self._told:
            self._say(self._told)
