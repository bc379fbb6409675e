"""Calls with metrics gather for one transaction: after one that took long, the next one waits for more of them. A
call that comes alone is kept at once.

A thread of its own keeps them, so that nothing else of the coordinator waits for a metric. A caller is answered when
its points are durable; while too many wait, a call is turned away with the number, to be made again."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from everstep.errors import Refused, TemporaryError
from everstep.record.writing import Incoming
from everstep.wire import MetricsKept

LINGER_S = 0.05  # the longest wait for more calls
LINGERS = 5.0  # times as long as the last transaction took
ENOUGH_POINTS = 2_000  # and no call is added to a transaction that has more
RESTS = 1.0  # as long as it has computed: the thread that answers heartbeats needs the same interpreter
MOST_WAITING = 200_000
RETRY_S = 0.5

Answer = MetricsKept | Refused


class CommitThread:
    def __init__(self, keep: Callable[[Sequence[Incoming]], Sequence[Answer]]) -> None:
        self._keep = keep
        self._waiting: deque[tuple[Incoming, Future[Answer]]] = deque()
        self._num_points = 0  # that wait
        self._gathers_until = 0.0
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def submit(self, call: Incoming) -> Future[Answer]:
        """Done when it is durable, refused, or failed."""
        future: Future[Answer] = Future()
        future.set_running_or_notify_cancel()  # a caller that hangs up takes nothing back
        with self._changed:
            if self._num_points and self._num_points + call.num_points > MOST_WAITING:
                raise TemporaryError(
                    f"{self._num_points} points of metrics wait for the store; the limit is {MOST_WAITING}",
                    wait_s=RETRY_S,
                    code="metrics-queue-full",
                )
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
                self._thread.start()
            self._waiting.append((call, future))
            self._num_points += call.num_points
            self._changed.notify()
        return future

    def close(self) -> None:
        """Keep what waits, and end."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while batch := self._next_batch():
            began_at, began_s = time.monotonic(), time.thread_time()
            try:
                answers = self._keep([call for call, _ in batch])
            except BaseException as error:
                for _, future in batch:
                    future.set_exception(error)
            else:
                for (_, future), answer in zip(batch, answers, strict=True):
                    future.set_result(answer)
            rest_s, now = RESTS * (time.thread_time() - began_s), time.monotonic()
            self._gathers_until = now + min(LINGER_S, LINGERS * (now - began_at))
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, rest_s)

    def _next_batch(self) -> list[tuple[Incoming, Future[Answer]]]:
        """Empty: closed, and nothing waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            left_s = self._gathers_until - time.monotonic()
            self._changed.wait_for(lambda: self._num_points >= ENOUGH_POINTS or self._is_closed, max(0.0, left_s))
            batch: list[tuple[Incoming, Future[Answer]]] = []
            num_points = 0
            while self._waiting and num_points < ENOUGH_POINTS:
                call, future = self._waiting.popleft()
                num_points += call.num_points
                batch.append((call, future))
            self._num_points -= num_points
            return batch
