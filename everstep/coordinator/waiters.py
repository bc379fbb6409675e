"""Wake all who wait, at once, without a thread, a lock or a poll. One event loop only."""

from __future__ import annotations

import asyncio


class Bell:
    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    async def wait(self, timeout_s: float) -> None:
        """Return when it rings, or when the time is over."""
        if timeout_s <= 0:
            return
        loop = asyncio.get_running_loop()
        rung: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(timeout_s, _wake, rung)
        self._waiting.add(rung)
        try:
            await rung
        finally:
            timer.cancel()
            self._waiting.discard(rung)

    def ring(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for rung in waiting:
            _wake(rung)


def _wake(rung: asyncio.Future[None]) -> None:
    if not rung.done():
        rung.set_result(None)
