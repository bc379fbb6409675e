"""Wake all who wait, at once, without a thread, a lock or a poll. One event loop only."""

from __future__ import annotations

import asyncio
from collections import defaultdict


class Bell:
    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Future[None]]] = defaultdict(set)

    async def wait(self, timeout_s: float, group: str = "") -> None:
        """Return when the bell rings for all or for this group, or when the time is up."""
        if timeout_s <= 0:
            return
        loop = asyncio.get_running_loop()
        rung: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(timeout_s, _wake, rung)
        waiting = self._waiting[group]
        waiting.add(rung)
        try:
            await rung
        finally:
            timer.cancel()
            waiting.discard(rung)

    def ring(self) -> None:
        """Wake all in one go. In turns, those woken first would call again and keep the others waiting."""
        waiting, self._waiting = self._waiting, defaultdict(set)
        for group in waiting.values():
            for rung in group:
                _wake(rung)

    def ring_for(self, group: str) -> None:
        for rung in self._waiting.pop(group, ()):
            _wake(rung)


def _wake(rung: asyncio.Future[None]) -> None:
    if not rung.done():
        rung.set_result(None)
