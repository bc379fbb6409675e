"""A coordinator whose people have names, and an agent that takes assignments without running them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from everstep import wire
from everstep.client.calls import Coordinator
from lab.command import until
from lab.experiments import spec

ALICE, BOB, ANYONE, ROOT = "user:alice:of-alice", "user:bob:of-bob", "user:of-anyone", "all:root:of-root"
WORKER = "worker:of-a-worker"
READER = "read-only:of-a-reader"

VALUE = "hunter2-of-alice"
HELD = {"KEY": VALUE}


def with_secrets(
    given: wire.ExperimentSpec | None = None, held: Mapping[str, str] = HELD, **more: Any
) -> wire.NewExperiment:
    given = given or spec("random", max_trials=1, order={"secrets": ["KEY"]}, **more)
    return wire.NewExperiment(**{each.name: getattr(given, each.name) for each in fields(given)}, secrets=dict(held))


def write_tokens(folder: Path) -> None:
    path = folder / "token"
    path.touch(mode=0o600)
    path.write_text("\n".join((WORKER, ALICE, BOB, ANYONE, ROOT, READER)) + "\n")


def as_(server: Any, token: str, job: str = "none") -> Coordinator:
    return Coordinator(server.url, token, job)


class TakingAgent:
    """Of the pool `default`: says that it runs all that it is told to, until it ends one."""

    def __init__(self, server: Any, num_slots: int, name: str = "taking") -> None:
        self._server, self._num_slots, self._name = server, num_slots, name
        self._incarnation, self._seen = uuid.uuid4().hex, 0
        self._states: dict[int, wire.AssignmentState] = {}
        self.orders: dict[str, wire.AssignmentOrder] = {}  # by job
        self.last: wire.PoolOrders | None = None

    def report(self) -> None:
        message = wire.PoolReport(
            incarnation=self._incarnation,
            num_slots=self._num_slots,
            kind="toy",
            assignments=list(self._states.values()),
            seen=self._seen,
            wait_s=0.05,
        )
        with as_(self._server, WORKER) as coordinator:
            orders = coordinator.report_pool("default", self._name, message)
        self._seen, self.last = orders.number, orders
        for each in orders.confirmed:
            self._states.pop(each, None)
        for order in orders.run:
            if order.number not in self._states:
                self._states[order.number] = wire.AssignmentState(number=order.number, state="running")
                self.orders[order.job] = order
        for end in orders.end:
            self._end(end.number)

    def take(self, *jobs: str) -> list[wire.AssignmentOrder]:
        """The orders of these jobs, as soon as they come."""
        self.until(lambda: all(each in self.orders for each in jobs))
        return [self.orders[each] for each in jobs]

    def end(self, job: str) -> None:
        self._end(self.orders.pop(job).number)

    def fail(self, job: str, exit_code: int = 1) -> None:
        number = self.orders.pop(job).number
        self._states[number] = wire.AssignmentState(
            number=number, state="ended", exit_code=exit_code, reason=f"exit code {exit_code}"
        )

    def _end(self, number: int) -> None:
        self._states[number] = wire.AssignmentState(number=number, state="ended", was_asked=True)

    def until(self, look: Callable[[], bool]) -> None:
        def is_so() -> bool:
            self.report()
            return look()

        until(is_so, lambda: f"{self.last}")

    def leave(self) -> None:
        with as_(self._server, WORKER) as coordinator:
            message = wire.AgentLeave(incarnation=self._incarnation, reason="the story is over")
            coordinator.pool_agent_leaves("default", self._name, message)
