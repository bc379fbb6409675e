"""Wake all who wait, without a thread, a lock or a poll. One event loop only."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from everstep.coordinator.turns import Turns
from everstep.errors import TemporaryError


class Bell:
    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._is_closed = False
        self._waiting: dict[str, dict[asyncio.Future[None], None]] = defaultdict(dict)  # in the order of their calls

    async def wait(self, timeout_s: float, group: str = "") -> None:
        """Return when the bell rings for all or for this group, or when the time is up. Raise if it is closed."""
        if timeout_s <= 0:
            return
        self._refuse_if_closed()
        loop = asyncio.get_running_loop()
        rung: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(timeout_s, _wake, rung)
        waiting = self._waiting[group]
        waiting[rung] = None
        try:
            await rung
        finally:
            timer.cancel()
            waiting.pop(rung, None)
        self._refuse_if_closed()

    def ring(self) -> None:
        """Wake all who wait now, in turns."""
        waiting, self._waiting = self._waiting, defaultdict(dict)
        for group in waiting.values():
            self._turns.wake(group)

    def close(self) -> None:
        """Wake all who wait, and who comes: with an error, since it rings no more."""
        self._is_closed = True
        for group in self._waiting.values():
            for rung in group:
                _wake(rung)

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise TemporaryError("the coordinator stops", hint="ask again", code="coordinator-stops")

    def ring_for(self, group: str) -> None:
        """At once: a group is small."""
        for rung in self._waiting.pop(group, ()):
            _wake(rung)


def _wake(rung: asyncio.Future[None]) -> None:
    if not rung.done():
        rung.set_result(None)
