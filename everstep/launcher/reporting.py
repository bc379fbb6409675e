"""An agent's reports to the coordinator. Three threads, so that none of its duties waits for another:

- report: heartbeat, workers that changed, and orders, in one long call after another;
- deaths: reports each worker that is gone, on a connection that is always open: milliseconds count;
- replacements: reserves ids for workers to be started, once the deaths before them are reported.

Each asks again while the coordinator is away, and after any other error, which it logs: none ends in silence. The
agent's own thread never waits for any of them."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TypeVar

from everstep import env
from everstep.client.calls import Coordinator
from everstep.errors import Abandoned, EverstepError, Refused, TemporaryError
from everstep.launcher.known_states import KnownStates, Sighting
from everstep.retry import patiently
from everstep.wire import AgentLeave, AgentOrders, AgentReport, JobView, Peer, ReservedWorker, ReserveWorker, WorkerExit

log = logging.getLogger("everstep")

T = TypeVar("T")

_ABSENCE_S = 2.0  # a shorter one is not worth a word
_IS_OVER = 409  # the job needs no more workers
_STANDSTILL_S = 1.0  # an answer that took this much longer than it was held: we were not running
_COMEBACK_S = 1.0  # workers that stood still with us have this long to report that they are back, before any is killed
_AGAIN_S = 0.5  # before a duty that failed begins again
_LOOK_S = 2.0  # between two views, while these are wanted
_WARM_S = 20.0  # a connection idle for a minute is closed by either side


class AgentReporter:
    def __init__(
        self,
        connect: Callable[[], Coordinator],
        *,
        agent: str,
        incarnation: str,
        heartbeat_s: float,
        look: Callable[[], tuple[AgentReport, Mapping[str, Sighting]]],
        on_orders: Callable[[AgentOrders], None],
        on_reserved: Callable[[str, ReservedWorker | None], None],
        on_failure: Callable[[EverstepError], None],
        say: Callable[[str], None],
        wants_view: Callable[[], bool] = lambda: False,
        on_view: Callable[[JobView], None] = lambda view: None,
    ) -> None:
        """`look`: returns the report on the node, and its workers. `on_view`: gets what the coordinator knows about the
        job, every few seconds while `wants_view` says so."""
        self._connect, self._wants_view, self._on_view = connect, wants_view, on_view
        self._agent, self._incarnation, self._heartbeat_s = agent, incarnation, heartbeat_s
        self._look, self._on_orders, self._on_reserved, self._on_failure = look, on_orders, on_reserved, on_failure
        self._say = say
        self._away_since: float | None = None
        self._is_absence_said = False
        self._logged_trouble = ""
        self._peers_seen, self._peers = 0, list[Peer]()
        self._known, self._report_s = KnownStates(), heartbeat_s
        self._unreported: deque[Callable[[Coordinator], None]] = deque()  # deaths, and leaving
        self._changed = threading.Condition()  # signals a new report, an empty list, or a new request
        self._requests: deque[tuple[str, str]] = deque()  # requests, and whom each replaces
        self._is_closed = threading.Event()

    def open(self) -> None:
        for duty in (self._report, self._report_deaths, self._reserve_replacements):
            threading.Thread(target=self._guarded, args=(duty,), name=f"agent {duty.__name__}", daemon=True).start()

    def close(self, timeout_s: float) -> None:
        """Wait until every death is reported, up to the time-out; the threads end by themselves."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unreported, timeout_s)
            self._is_closed.set()
            self._changed.notify_all()

    def ask_replacement(self, request: str, replaces: str) -> None:
        """Ask for a replacement; it comes as `on_reserved(request, reserved)`, with None if the job is over."""
        with self._changed:
            self._requests.append((request, replaces))
            self._changed.notify_all()

    def report_exit(self, worker: str, ended: WorkerExit) -> None:
        self._report_soon(lambda coordinator: coordinator.exited(worker, ended))

    def report_leaving(self, reason: str) -> None:
        """This node ends in good order; an end of its workers from now on is not a failure."""
        message = AgentLeave(incarnation=self._incarnation, reason=reason)
        self._report_soon(lambda coordinator: coordinator.agent_leaves(self._agent, message))

    def _report_soon(self, call: Callable[[Coordinator], None]) -> None:
        with self._changed:
            self._unreported.append(call)
            self._changed.notify_all()

    def _guarded(self, duty: Callable[[Coordinator], None]) -> None:
        """Start over after any error, except one that makes another try pointless."""
        while not self._is_closed.is_set():
            try:
                with closing(self._connect()) as coordinator:
                    duty(coordinator)
                return
            except Abandoned:  # the line was closed
                return
            except EverstepError as error:  # refused (unknown job, wrong token), or away for too long
                self._on_failure(error)
                return
            except Exception as error:
                self._notice_trouble(error)
                self._is_closed.wait(_AGAIN_S)

    def _report(self, coordinator: Coordinator) -> None:
        woke_at = float("-inf")
        while True:
            began = time.monotonic()
            held_s = self._report_s
            orders = self._with_peers(self._ask(partial(self._report_once, coordinator)))
            self._report_s = orders.report_s or self._heartbeat_s
            if (now := time.monotonic()) - began > held_s + _STANDSTILL_S:
                woke_at = now  # the whole node stood still
            if now - woke_at < _COMEBACK_S:
                orders = replace(orders, kill=[])
            self._on_orders(orders)
            if orders.kill or orders.is_ended:  # the same orders come again until obeyed: no need to ask in a spin
                self._is_closed.wait(max(0.0, began + self._heartbeat_s / 4 - time.monotonic()))

    def _report_once(self, coordinator: Coordinator) -> AgentOrders:
        report, seen = self._look()
        report = replace(report, peers_seen=self._peers_seen, wait_s=self._report_s)
        orders = coordinator.report(self._agent, self._known.next_report(report, seen, time.monotonic()))
        self._known.answered(orders)
        return orders

    def _with_peers(self, orders: AgentOrders) -> AgentOrders:
        """The coordinator sends them once per change: keep the last list."""
        if orders.peers_seen != self._peers_seen:
            self._peers_seen = orders.peers_seen
            self._peers = [peer for peer in orders.peers if peer.agent != self._agent]
        return replace(orders, peers=self._peers)

    def _report_deaths(self, coordinator: Coordinator) -> None:
        self._ask(coordinator.check)  # opens the connection before it is needed
        asked_at = time.monotonic()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._unreported or self._is_closed.is_set(), _LOOK_S)
                call = self._unreported[0] if self._unreported else None
                if call is None and self._is_closed.is_set():
                    return
            if call is not None:
                self._ask(partial(call, coordinator))
                with self._changed:
                    self._unreported.popleft()
                    self._changed.notify_all()
            elif self._wants_view():
                self._on_view(self._ask(coordinator.view))
            elif time.monotonic() > asked_at + _WARM_S:
                self._ask(coordinator.check)
            else:
                continue
            asked_at = time.monotonic()

    def _reserve_replacements(self, coordinator: Coordinator) -> None:
        while True:
            with self._changed:  # one that is started now comes after the deaths that are known, for all to see
                self._changed.wait_for(lambda: (self._requests and not self._unreported) or self._is_closed.is_set())
                if self._is_closed.is_set():
                    return
                request, replaces = self._requests.popleft()
            try:
                wanted = ReserveWorker(agent=self._agent, request=request, replaces=replaces)
                reserved = self._ask(partial(coordinator.reserve, wanted))
            except Refused as refusal:
                if refusal.status != _IS_OVER:
                    raise
                self._on_reserved(request, None)
            else:
                self._on_reserved(request, reserved)

    def _ask(self, call: Callable[[], T]) -> T:
        def attempt() -> T:
            try:
                answer = call()
            except TemporaryError as error:
                self._notice_absence(error)
                raise
            except EverstepError:
                raise
            except Exception as error:  # a bug, or the machine's: the duty continues and tries again
                self._notice_trouble(error)
                raise TemporaryError(f"{type(error).__name__}: {error}", code="call-failed-here") from error
            self._notice_presence()
            return answer

        return patiently(attempt, env.coordinator_deadline_s(), stop=self._is_closed)

    def _notice_absence(self, error: TemporaryError) -> None:
        now = time.monotonic()
        self._away_since = self._away_since or now
        if now - self._away_since > _ABSENCE_S and not self._is_absence_said:
            self._is_absence_said = True
            patience = f"{env.coordinator_deadline_s():.0f} s at most"
            self._say(f"the coordinator does not answer; retrying for {patience}: {error.message}")
            self._say("run the same command again on the node that hosted it to continue; or press Ctrl-C to end here")

    def _notice_trouble(self, error: Exception) -> None:
        trouble = f"{type(error).__name__}: {error}"
        if trouble != self._logged_trouble:
            self._logged_trouble = trouble
            log.warning("a call to the coordinator failed here", exc_info=error)
            self._say(f"a call to the coordinator failed on this node, trying again: {trouble}")

    def _notice_presence(self) -> None:
        if self._is_absence_said:
            self._say("the coordinator answers again")
        self._away_since, self._is_absence_said = None, False
