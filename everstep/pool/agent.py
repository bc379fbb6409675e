"""The pool agent of a node: runs what the coordinator assigns to its slots, each assignment in its own process.

One thread decides and acts. It waits for process ends, signals and orders in one place, and never for the coordinator.
Orders name every assignment that should run here: the agent starts the missing ones and ends all others. While the
coordinator is away, running trials continue. On SIGTERM and SIGINT, all trials save and leave. If the agent is killed,
its processes end with it."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from everstep import env, wire
from everstep.client.calls import Coordinator
from everstep.errors import EverstepError, PermanentError
from everstep.events import emit
from everstep.ipc.event_loop import EventLoop
from everstep.launcher.machine import gpu_names
from everstep.launcher.node_data import NodeData
from everstep.launcher.saver_process import SaverProcess
from everstep.launcher.spare_saver import SpareSaver
from everstep.pool import code_folder
from everstep.pool.assignment_folders import AssignmentFolders
from everstep.pool.leave_times import LeaveTimes, leave_in_time
from everstep.pool.node_processes import NodeProcesses, TrialProcess
from everstep.pool.reporter import PoolReporter
from everstep.pool.trial_order import DATA, LOST, SAVER, UNFIT, TrialOrder, last_words
from everstep.wire.pool import (
    DRAINING,
    ENABLED,
    KILL,
    MOST_PARKED,
    AssignmentState,
    EndOrder,
    NodeEnvironment,
    PoolOrders,
    PoolReport,
)

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PRUNE_S = 3600.0
MOST_UNSTARTED = 3  # trials in a row that a node cannot start, before it leaves: the next one would fail too
_NOT_BEGUN = -int(signal.SIGTERM)
_AWAY = 0.5  # of the time that trials wait for the coordinator; a trial that ends after that is not at fault


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolAgentSpec:
    url: str
    token_file: Path
    pool: str
    agent: str  # unique in the pool
    num_slots: int
    kind: str  # of machine
    folder: Path
    times: LeaveTimes
    environment: NodeEnvironment
    most_parked_bytes: int  # of memory, for the last states of trials that may continue here


@dataclass(slots=True, eq=False)
class _Running:
    order: wire.AssignmentOrder
    process: TrialProcess
    folder: Path
    was_asked: bool = False
    is_killed: bool = False


class PoolAgent:
    """Call `run` once, from the main thread."""

    def __init__(self, spec: PoolAgentSpec, say: Callable[[str], None], spare: SpareSaver) -> None:
        self._spec, self._say = spec, say
        self._incarnation = uuid.uuid4().hex
        self._loop = loop = EventLoop()
        self._processes = NodeProcesses(loop)
        self._data = NodeData(spec.folder / DATA, loop, say)
        self._saver = SaverProcess(spec.folder / SAVER, loop, say, spare, most_left_bytes=spec.most_parked_bytes)
        self._folders = AssignmentFolders(spec.folder)
        self._gpus = gpu_names()
        self._running: dict[int, _Running] = {}
        self._ended: dict[int, AssignmentState] = {}
        self._states: tuple[AssignmentState, ...] = ()  # of both, for other threads
        self._parked: dict[str, None] = {}  # keys of trials whose states the saver may hold, the oldest first
        self._is_closing = False
        self._num_unstarted = 0  # in a row
        self._state = ENABLED  # by the coordinator
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
                self._saver.open()
                self._data.open()
                self._processes.open()
                self._reporter.open()
                self._prune()
                spec = self._spec
                leave_in_time(self._loop, spec.times, lambda: self._reporter.silent_s, self._leave)
                emit("pool.joined", agent=spec.agent, pool=spec.pool, num_slots=spec.num_slots)
                self._say(f"{spec.agent}: {spec.num_slots} slots in pool {spec.pool} of {spec.url}")
                while self._running or not self._is_closing:
                    self._loop.turn()
            finally:
                self._kill_all()
                self._saver.close()
                self._data.close()
                self._reporter.leave(self._incarnation, str(self._failure or "it was asked to end"))
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
            leaves_at=self._spec.times.until,
            environment=self._spec.environment,
            parked=list(self._parked.copy()),
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
                is_failed = ended.exit_code == UNFIT or (ended.exit_code != 0 and not ended.was_asked)
                self._folders.let_go(number, is_failed=is_failed)
        for key in orders.over:
            self._let_go_of(key)
        for end in orders.end:
            self._end(end)
        named = {each.number for each in orders.run} | {each.number for each in orders.end}
        for number in self._running.keys() - named:
            self._end(EndOrder(number=number, how=KILL, reason="the coordinator does not know this assignment"))
        for order in orders.run:
            if order.number not in self._running and order.number not in self._ended and not self._is_closing:
                self._start(order)
        self._tell_state(orders.state, orders.state_reason)
        if orders.is_closing:
            self._close()
        if before != (set(self._running), set(self._ended)):
            self._note()

    def _tell_state(self, state: str, reason: str) -> None:
        """A node that was drained or disabled stays so after a restart: tell the person who starts it why it gets no
        work."""
        if state == self._state:
            return
        self._state = state
        name, pool = self._spec.agent, self._spec.pool
        if state == ENABLED:
            self._say(f"{name} is enabled: it gets trials again")
            return
        what = "its trials leave, and it gets no new ones" if state == DRAINING else "it gets no new trials"
        why = f" ({reason})" if reason else ""
        self._say(f"{name} is {state}{why}: {what} until `everstep agent enable {name} --pool {pool}`")

    def _start(self, order: wire.AssignmentOrder) -> None:
        told = TrialOrder(
            assignment=asdict(replace(order, secrets={})),  # they are in no file
            url=self._spec.url,
            agent=self._spec.agent,
            pool_folder=str(self._spec.folder),
            slot_memory_bytes=self._spec.environment.slot_memory_bytes,
            slot_cpus=self._spec.environment.slot_cpus,
            gpu=self._gpus[order.slot % len(self._gpus)] if self._gpus else "",
        )
        try:
            folder = self._folders.make(order.number)
            told.write(folder)
            process = self._processes.start(folder, order.secrets)
        except OSError as error:  # a full disk, no process left
            self._put_unstarted(order.number, f"its process cannot be started: {error}")
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
                self._put_end(end.number, _NOT_BEGUN, was_asked=True, reason="it was never started on this node")
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
        reason = last_words(running.folder) or str(ended)
        if running.process.is_bereft:
            reason = "its process ended together with the process that forked it"
            self._put_end(number, ended.code, was_asked=True, reason=reason)
        elif ended.code and self._reporter.silent_s > env.coordinator_deadline_s() * _AWAY:
            # The trial waited without an answer.
            reason = f"the coordinator was away for {self._reporter.silent_s:.0f} s"
            self._put_end(number, ended.code, was_asked=True, reason=reason)
        elif ended.code == UNFIT:
            self._put_unstarted(number, reason)
        else:
            self._num_unstarted = 0
            self._put_end(number, ended.code, was_asked=running.was_asked or ended.code == LOST, reason=reason)
            self._note_left(running.order.key or running.order.job, is_over=ended.code == 0 and not running.was_asked)
        emit("assignment.ended", agent=self._spec.agent, assignment=number, exit_code=ended.code, job=running.order.job)
        self._note()

    def _note_left(self, key: str, *, is_over: bool) -> None:
        """Keep the last state of a trial in memory, because the trial may continue here."""
        self._parked.pop(key, None)
        if is_over or not self._saver.pid:
            self._saver.release(key)
            return
        self._parked[key] = None
        if len(self._parked) > MOST_PARKED:
            self._let_go_of(next(iter(self._parked)))

    def _let_go_of(self, key: str) -> None:
        self._parked.pop(key, None)
        self._saver.release(key)

    def _put_end(self, number: int, code: int, *, was_asked: bool, reason: str) -> None:
        self._ended[number] = AssignmentState(
            number=number, state="ended", exit_code=code, was_asked=was_asked, reason=reason
        )

    def _put_unstarted(self, number: int, reason: str) -> None:
        """This is the node's failure, not the trial's: another node may start it. If it happens again, leave."""
        self._say(f"assignment {number} could not be started: {reason}")
        self._put_end(number, UNFIT, was_asked=True, reason=f"{self._spec.agent} could not start it: {reason}")
        self._num_unstarted += 1
        if self._num_unstarted >= MOST_UNSTARTED and not self._is_closing:
            last, number = reason.partition("\n")[0], self._num_unstarted
            hint = f"is {self._spec.folder} writable, with free space, and can this node reach the coordinator?"
            message = f"{self._spec.agent} could not start {number} trials in a row, and leaves the pool: {last}"
            self._failure = PermanentError(message, hint=hint, code="pool-node-unfit")
            self._close()

    # --- the end ------------------------------------------------------------------------------------

    def _interrupt(self, number: int) -> None:
        if self._is_closing:
            self._kill_all()
            return
        self._leave(signal.Signals(number).name)

    def _leave(self, why: str) -> None:
        if not self._is_closing:
            number = len(self._running)
            self._say(f"{why}: {number} trial{' saves and leaves' if number == 1 else 's save and leave'}")
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
        """End everything that runs here."""
        self._failure = self._failure or error
        self._kill_all()
