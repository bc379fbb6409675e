"""Work that may wait, a few pieces per turn of the event loop, so that everything else passes in between.

When a generation is closed, thousands of workers are notified, and all of them call again. In one go, a report or the
news of a death would wait behind them for seconds. So replies and workers' calls wait in two lines, each in its order.
Replies go first: workers that were notified first would otherwise keep the others waiting by calling again. No line
starves the other: only calls that were taken can be replied to. One event loop only."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from typing import Protocol

PER_TURN = 128  # pieces: some 20 ms. With fewer, a busy machine loses more time to switching between processes


class Caller(Protocol):
    def take_turn(self) -> bool:
        """Begin the call that waits. False: it is gone."""


class Turns:
    def __init__(self) -> None:
        self._replies: deque[asyncio.Future[None]] = deque()
        self._calls: deque[tuple[float, Caller]] = deque()  # and since when they wait
        self._num_taken = self._num_passed = 0  # in this turn
        self._is_turning = False

    def may_pass(self) -> bool:
        """Whether a call need not wait: nothing does, and this turn has time for it."""
        if self._replies or self._calls or self._num_taken >= PER_TURN:
            return False
        self._num_taken += 1
        self._turn_soon()
        return True

    def pass_by(self) -> None:
        """A call that never waits has come. As many that wait are taken, so that a flood does not stop them."""
        self._num_passed += 1

    def wait(self, caller: Caller) -> None:
        self._calls.append((time.monotonic(), caller))
        self._turn_soon()

    def wake(self, waiting: Iterable[asyncio.Future[None]]) -> None:
        """A few of them at once, unless others are still to be woken."""
        self._replies.extend(waiting)
        if not self._is_turning:
            self._turn()

    def heard_until(self, now: float) -> float:
        """All calls that came before this time have been taken on."""
        return self._calls[0][0] if self._calls else now

    def _turn_soon(self) -> None:
        if not self._is_turning:
            self._is_turning = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        most = max(PER_TURN, self._num_passed)
        self._is_turning, self._num_taken, self._num_passed = False, 0, 0
        try:
            self._take(most)
        finally:  # also after an error in one of them: the others still wait
            if self._num_taken or self._replies or self._calls:
                self._turn_soon()

    def _take(self, most: int) -> None:
        while self._replies and self._num_taken < most:
            rung = self._replies.popleft()
            if not rung.done():  # else its time was up, or its caller is gone
                rung.set_result(None)
                self._num_taken += 1
        while self._calls and self._num_taken < most:
            self._num_taken += self._calls.popleft()[1].take_turn()
