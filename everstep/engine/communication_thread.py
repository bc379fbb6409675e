"""The one communication thread of a worker: runs reductions one after the other, each to its end."""

from __future__ import annotations

import queue
import threading

from everstep.engine.reduction import Reduction


class CommunicationThread:
    def __init__(self) -> None:
        self._todo: queue.SimpleQueue[Reduction | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def take(self, reduction: Reduction) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="everstep-communication", daemon=True)
            self._thread.start()
        self._todo.put(reduction)

    def close(self) -> None:
        """Ends after its present reduction. A thread stuck in a broken operation is abandoned; it is a daemon."""
        if self._thread is not None:
            self._todo.put(None)
            self._thread.join(timeout=5)
            self._thread = None

    def _work(self) -> None:
        while (reduction := self._todo.get()) is not None:
            reduction.run()
