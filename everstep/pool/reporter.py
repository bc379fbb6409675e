"""A pool agent's calls: each reports everything that runs, and the coordinator holds it until there are new orders.
Changes are reported at once.

Two threads, each with its own connection. While the coordinator is away, they keep trying, and trials continue."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial

from everstep.client.calls import Coordinator
from everstep.errors import Abandoned, EverstepError
from everstep.retry import patiently
from everstep.wire import AgentLeave
from everstep.wire.pool import PoolOrders, PoolReport

HOLD_S = 1.0
_FAREWELL_S = 5.0


class PoolReporter:
    def __init__(
        self,
        connect: Callable[[], Coordinator],
        *,
        pool: str,
        agent: str,
        look: Callable[[int, float], PoolReport],
        on_orders: Callable[[PoolOrders], None],
        on_failure: Callable[[EverstepError], None],
        say: Callable[[str], None],
    ) -> None:
        """`look`: the report, with the number of the last orders and how long the call may be held; from any thread."""
        self._connect, self._pool, self._agent, self._look = connect, pool, agent, look
        self._on_orders, self._on_failure, self._say = on_orders, on_failure, say
        self._seen = 0
        self._heard_at = time.monotonic()
        self._lock = threading.Lock()
        self._has_changed, self._is_closed = threading.Event(), threading.Event()

    def open(self) -> None:
        for duty in (self._ask_on, self._push):
            threading.Thread(target=self._guarded, args=(duty,), name=f"pool {duty.__name__}", daemon=True).start()

    @property
    def silent_s(self) -> float:
        """How long the coordinator has been away."""
        return time.monotonic() - self._heard_at

    def push(self) -> None:
        """Report soon: something has changed."""
        self._has_changed.set()

    def leave(self, incarnation: str, reason: str) -> None:
        """Report how each assignment ended, and that nothing runs here any more."""
        self._is_closed.set()
        self._has_changed.set()
        message = AgentLeave(incarnation=incarnation, reason=reason)
        with suppress(EverstepError), closing(self._connect()) as coordinator:  # otherwise the lease expires
            patiently(partial(self._report, coordinator, 0.0), _FAREWELL_S)
            patiently(lambda: coordinator.pool_agent_leaves(self._pool, self._agent, message), _FAREWELL_S)

    def _guarded(self, duty: Callable[[Coordinator], None]) -> None:
        try:
            with closing(self._connect()) as coordinator:
                duty(coordinator)
        except Abandoned:
            pass
        except EverstepError as error:  # refused: a wrong token, or another agent of this name
            self._on_failure(error)

    def _ask_on(self, coordinator: Coordinator) -> None:
        while not self._is_closed.is_set():
            call = partial(self._report, coordinator, HOLD_S)
            self._take(patiently(call, math.inf, stop=self._is_closed, say=self._say))

    def _push(self, coordinator: Coordinator) -> None:
        while not self._is_closed.is_set():
            self._has_changed.wait()
            self._has_changed.clear()
            if not self._is_closed.is_set():
                self._take(patiently(partial(self._report, coordinator, 0.0), math.inf, stop=self._is_closed))

    def _report(self, coordinator: Coordinator, hold_s: float) -> PoolOrders:
        orders = coordinator.report_pool(self._pool, self._agent, self._look(self._seen, hold_s))
        self._heard_at = time.monotonic()
        return orders

    def _take(self, orders: PoolOrders) -> None:
        with self._lock:
            if orders.number <= self._seen:
                return
            self._seen = orders.number
            self._on_orders(orders)
