"""A node whose workers another launcher starts and watches, such as torchrun's agent: it has its part in attempts too.

To the coordinator it is an agent with one worker, in place of all that the other launcher starts on this node.
Separate threads receive the coordinator's orders (reporting.py); the launcher asks when it wants to know."""

from __future__ import annotations

import logging
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from everstep.addresses import listen
from everstep.client.calls import Coordinator
from everstep.errors import EverstepError, JobFinished, JobStopped
from everstep.launcher.known_states import Sighting
from everstep.launcher.probe import Probe
from everstep.launcher.reporting import AgentReporter
from everstep.wire import AgentOrders, AgentReport, AttemptOrder, Stop, WorkerExit

log = logging.getLogger("everstep")

_FAREWELL_S = 5.0
# A launcher whose own workers ended well waits for the other nodes and is deaf meanwhile. If their attempt is closed,
# they must not wait for it; one that is merely slow in ending its workers has this long.
PATIENCE_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRole:
    """What this node does in an attempt, and the socket that listens on the port it had offered: if it is node 0,
    on the attempt's master port."""

    order: AttemptOrder
    listener: socket.socket


class ExternalNode:
    """From the first `next_attempt` to `leave`. For one thread, beside those that hear the coordinator."""

    def __init__(
        self,
        connect: Callable[[], Coordinator],
        *,
        agent: str,
        address: str,
        heartbeat_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._connect, self._agent, self._address = connect, agent, address
        self._say = say
        self._incarnation = uuid.uuid4().hex
        self._probe = Probe(address)
        self._reporter = AgentReporter(
            connect,
            agent=agent,
            incarnation=self._incarnation,
            heartbeat_s=heartbeat_s,
            look=self._look,
            on_orders=self._hear,
            on_reserved=lambda request, reserved: None,
            on_failure=self._give_up,
            say=say,
        )
        self._changed = threading.Condition()
        self._orders: AgentOrders | None = None
        self._failure: EverstepError | None = None
        self._order: AttemptOrder | None = None  # what this node takes part in …
        self._due: NodeRole | None = None  # … and what it shall take part in next
        self._listener = listen(address)
        self._last_attempt = -1
        self._closed_at: float | None = None
        self._is_open = self._is_ready = False
        self._told_why = ""

    def next_attempt(self) -> NodeRole:
        """Blocks until all nodes start together. The part that this node had in an earlier attempt is over."""
        with self._changed:
            self._is_ready = True
            self._end_part(1)
            if not self._is_open:
                self._is_open = True
                self._probe.open()
                self._reporter.open()
            self._changed.wait_for(lambda: self._due is not None or self._is_over)
            if self._due is None:
                raise self._why_over()
            part, self._due, self._closed_at = self._due, None, None
            self._order = part.order
            return part

    @property
    def is_attempt_over(self) -> bool:
        """Whether the workers of the attempt that this node takes part in must end."""
        with self._changed:
            return self._is_over or self._is_closed()

    @property
    def is_job_over(self) -> bool:
        with self._changed:
            return self._is_over

    def finish(self) -> None:
        """All workers of this node ended well."""
        with self._changed:
            self._end_part(0)

    def stop(self, reason: str) -> None:
        """End the job for all nodes."""
        try:
            with self._connect() as coordinator:
                coordinator.stop(Stop(reason=reason))
        except EverstepError as error:
            log.warning("could not report the end of the job to the coordinator: %s", error.message)

    def leave(self) -> None:
        if self._is_open:
            self._reporter.report_leaving("its work is done")
            self._reporter.close(_FAREWELL_S)
            self._probe.close()
        self._listener.close()

    # --- orders ----------------------------------------------------------------------------

    def _look(self) -> tuple[AgentReport, Mapping[str, Sighting]]:
        with self._changed:
            report = AgentReport(
                incarnation=self._incarnation,
                node=self._agent,
                workers=[],
                num_workers=1 if self._is_ready else 0,
                address=self._address,
                probe_port=self._probe.port,
                free_port=self._listener.getsockname()[1],
                unreachable=self._probe.unreachable,
            )
        return report, {}  # the workers are torchrun's: this node does not see them

    def _hear(self, orders: AgentOrders) -> None:
        with self._changed:
            self._orders = orders
            (start,) = orders.start or (None,)
            self._drop_due(start)
            if start is not None and start.number > self._last_attempt:
                self._last_attempt = start.number
                # Another port for the next attempt at once, before the next report.
                self._due, self._listener = NodeRole(order=start, listener=self._listener), listen(self._address)
                self._probe.follow(orders.peers)
            self._tell_why(orders)
            self._lose_patience()
            self._changed.notify_all()

    def _drop_due(self, start: AttemptOrder | None) -> None:
        """One that was over before it began here."""
        if self._due is not None and (start is None or start.number != self._due.order.number):
            self._tell_end(self._due.order, -signal.SIGTERM)
            self._due.listener.close()
            self._due = None

    def _give_up(self, error: EverstepError) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def _tell_why(self, orders: AgentOrders) -> None:
        is_idle = self._order is None or self._is_closed()
        if orders.why != self._told_why and is_idle and not orders.start and not orders.is_ended:
            self._told_why = orders.why
            self._say(f"the attempt is over: {orders.why}" if self._order else f"waiting: {orders.why}")

    def _lose_patience(self) -> None:
        if self._order is None or not self._is_closed():
            return
        now = time.monotonic()
        self._closed_at = self._closed_at or now
        if now - self._closed_at > PATIENCE_S:
            self._is_ready = False
            self._end_part(0)

    # --- state ----------------------------------------------------------------------------

    def _end_part(self, code: int) -> None:
        if self._order is not None:
            self._tell_end(self._order, -signal.SIGTERM if self._is_closed() else code)
            self._order = None

    def _tell_end(self, order: AttemptOrder, code: int) -> None:
        for worker in order.workers:
            self._reporter.report_exit(worker, WorkerExit(exit_code=code))

    def _is_closed(self) -> bool:
        orders, order = self._orders, self._order
        if orders is None or order is None or orders.attempt < order.number:
            return False
        return orders.attempt > order.number or orders.is_attempt_closed

    @property
    def _is_over(self) -> bool:
        return self._failure is not None or (self._orders is not None and self._orders.is_ended)

    def _why_over(self) -> BaseException:
        if self._failure is not None:
            return self._failure
        if self._orders and self._orders.reason:
            return JobStopped(self._orders.reason, code="job-stopped-elsewhere")
        return JobFinished("the other nodes finished the job")
