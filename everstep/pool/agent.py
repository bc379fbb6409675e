"""The standing agent of a node in a pool: runs what the coordinator assigns to its slots, each in a process of its own.

One thread decides and acts; it waits for process ends, signals and orders in one place and never for the coordinator.
Orders name all that should run here: it starts what is missing, and ends the rest. While the coordinator is away,
what runs continues. On SIGTERM and SIGINT all trials save and leave; if it is killed, all that it started ends too."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from everstep import env, wire
from everstep.client.calls import Coordinator
from everstep.errors import EverstepError
from everstep.events import emit
from everstep.ipc.event_loop import EventLoop
from everstep.launcher.machine import gpu_names
from everstep.pool import code_folder
from everstep.pool.assignment_folders import AssignmentFolders
from everstep.pool.node_processes import NodeProcesses, TrialProcess
from everstep.pool.reporter import PoolReporter
from everstep.pool.trial_node import LOST, TrialOrder, last_words
from everstep.wire.pool import AssignmentState, EndOrder, PoolOrders, PoolReport

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
KILL = "kill"
PRUNE_S = 3600.0
_NOT_BEGUN = -int(signal.SIGTERM)
_AWAY = 0.5  # of the time that trials wait for the coordinator: the end of one is not its own failure then


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolAgentSpec:
    url: str
    token_file: Path
    pool: str
    agent: str  # unique in the pool
    num_slots: int
    kind: str  # of machine
    folder: Path


@dataclass(slots=True, eq=False)
class _Running:
    order: wire.AssignmentOrder
    process: TrialProcess
    folder: Path
    was_asked: bool = False
    is_killed: bool = False


class PoolAgent:
    """Call `run` once, from the main thread."""

    def __init__(self, spec: PoolAgentSpec, say: Callable[[str], None]) -> None:
        self._spec, self._say = spec, say
        self._incarnation = uuid.uuid4().hex
        self._loop = loop = EventLoop()
        self._processes = NodeProcesses(loop)
        self._folders = AssignmentFolders(spec.folder)
        self._gpus = gpu_names()
        self._running: dict[int, _Running] = {}
        self._ended: dict[int, AssignmentState] = {}
        self._states: tuple[AssignmentState, ...] = ()  # of both, for other threads
        self._is_closing = False
        self._failure: EverstepError | None = None
        self._reporter = PoolReporter(
            self._connect,
            pool=spec.pool,
            agent=spec.agent,
            look=self._look,
            on_orders=lambda orders: loop.post(lambda: self._obey(orders)),
            on_failure=lambda error: loop.post(lambda: self._give_up(error)),
            say=say,
        )

    def run(self) -> int:
        with self._loop.signals(ENDING_SIGNALS, self._interrupt):
            try:
                self._processes.open()
                self._reporter.open()
                self._prune()
                spec = self._spec
                emit("pool.joined", agent=spec.agent, pool=spec.pool, num_slots=spec.num_slots)
                self._say(f"{spec.agent}: {spec.num_slots} slots in pool {spec.pool} of {spec.url}")
                while self._running or not self._is_closing:
                    self._loop.turn()
            finally:
                self._kill_all()
                self._reporter.leave(self._incarnation, str(self._failure or "it was asked to"))
                self._processes.close()
        if self._failure is not None:
            self._say(str(self._failure))
        return 1 if self._failure is not None else 0

    def _connect(self) -> Coordinator:
        return Coordinator(self._spec.url, env.read_token(self._spec.token_file), "")

    def _look(self, seen: int, hold_s: float) -> PoolReport:
        """Called from the reporter's threads."""
        return PoolReport(
            incarnation=self._incarnation,
            num_slots=0 if self._is_closing else self._spec.num_slots,
            kind=self._spec.kind,
            assignments=list(self._states),
            seen=seen,
            wait_s=hold_s,
        )

    def _note(self) -> None:
        running = [AssignmentState(number=number, state="running") for number in self._running]
        self._states = (*running, *self._ended.values())
        self._reporter.push()

    # --- orders -------------------------------------------------------------------------------------

    def _obey(self, orders: PoolOrders) -> None:
        before = (set(self._running), set(self._ended))
        for number in orders.confirmed:
            if (ended := self._ended.pop(number, None)) is not None:
                self._folders.let_go(number, is_failed=ended.exit_code != 0 and not ended.was_asked)
        for end in orders.end:
            self._end(end)
        named = {each.number for each in orders.run} | {each.number for each in orders.end}
        for number in self._running.keys() - named:
            self._end(EndOrder(number=number, how=KILL, reason="the coordinator knows nothing of it"))
        for order in orders.run:
            if order.number not in self._running and order.number not in self._ended and not self._is_closing:
                self._start(order)
        if orders.is_closing:
            self._close()
        if before != (set(self._running), set(self._ended)):
            self._note()

    def _start(self, order: wire.AssignmentOrder) -> None:
        folder = self._folders.make(order.number)
        TrialOrder(
            assignment=asdict(order),
            url=self._spec.url,
            token_file=str(self._spec.token_file),
            agent=self._spec.agent,
            pool_folder=str(self._spec.folder),
            gpu=self._gpus[order.slot % len(self._gpus)] if self._gpus else "",
        ).write(folder)
        try:
            process = self._processes.start(folder)
        except OSError as error:  # no process left
            self._put_end(order.number, 1, was_asked=False, reason=f"it cannot be started: {error}")
            return
        running = self._running[order.number] = _Running(order, process, folder)
        self._loop.watch(process.child, lambda: self._bury(running))
        emit(
            "assignment.started", agent=self._spec.agent, assignment=order.number, job=order.job, pid=process.child.pid
        )

    def _end(self, end: EndOrder) -> None:
        running = self._running.get(end.number)
        if running is None:
            if end.number not in self._ended:
                self._put_end(end.number, _NOT_BEGUN, was_asked=True, reason="it had not begun here")
        elif end.how == KILL and not running.is_killed:
            running.was_asked = running.is_killed = True
            running.process.child.signal(signal.SIGKILL)
        elif not running.was_asked:
            running.was_asked = True
            running.process.child.signal(signal.SIGTERM, is_for_group=False)

    def _prune(self) -> None:
        """Now, and once in a while."""
        orders = [each.order for each in self._running.values()]
        digests = [str(each.order.get("code", "")) for each in orders]
        trials = [each.key or each.job for each in orders]
        code_folder.prune(self._spec.folder, time.time(), digests=digests, trials=trials)
        self._loop.after(PRUNE_S, self._prune)

    def _bury(self, running: _Running) -> None:
        number = running.order.number
        if self._running.get(number) is not running:
            return
        self._loop.forget(running.process.child)
        ended = running.process.child.wait()
        assert ended is not None
        del self._running[number]
        if running.process.is_bereft or ended.code == LOST:  # with the process that it was a fork of
            self._put_end(number, ended.code, was_asked=True, reason="the pool's agent lost it")
        elif (
            ended.code and self._reporter.silent_s > env.coordinator_deadline_s() * _AWAY
        ):  # it waited without an answer
            reason = f"the coordinator was away for {self._reporter.silent_s:.0f} s"
            self._put_end(number, ended.code, was_asked=True, reason=reason)
        else:
            reason = last_words(running.folder) or str(ended)
            self._put_end(number, ended.code, was_asked=running.was_asked, reason=reason)
        emit("assignment.ended", agent=self._spec.agent, assignment=number, exit_code=ended.code, job=running.order.job)
        self._note()

    def _put_end(self, number: int, code: int, *, was_asked: bool, reason: str) -> None:
        self._ended[number] = AssignmentState(
            number=number, state="ended", exit_code=code, was_asked=was_asked, reason=reason
        )

    # --- the end ------------------------------------------------------------------------------------

    def _interrupt(self, number: int) -> None:
        if self._is_closing:
            self._kill_all()
            return
        self._say(f"{signal.Signals(number).name}: {len(self._running)} trials save and leave")
        self._close()

    def _close(self) -> None:
        self._is_closing = True
        for number in self._running:
            self._end(EndOrder(number=number, how="park", reason="the node leaves"))
        self._note()

    def _kill_all(self) -> None:
        self._is_closing = True
        for running in list(self._running.values()):
            running.was_asked = True
            running.process.child.signal(signal.SIGKILL)
            self._bury(running)

    def _give_up(self, error: EverstepError) -> None:
        """Nothing that runs here is wanted any more."""
        self._failure = self._failure or error
        self._kill_all()
