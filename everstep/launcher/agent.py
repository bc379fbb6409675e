"""The agent: starts a node's workers, sees their deaths within a millisecond, obeys kill orders, replaces the dead.

One thread decides and acts; it waits for process ends, signals, orders and deadlines in one place (loop.py) and never
for the coordinator (line.py does). Ends when none of its workers is left, and leaves no process behind: on SIGINT and
SIGTERM in good order, on its own kill -9 by the kernel's hand (process.py). Knows nothing of torch."""

from __future__ import annotations

import logging
import os
import signal
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from everstep import env
from everstep.board import read_board
from everstep.client import Coordinator
from everstep.errors import EverstepError, UsageError
from everstep.events import emit
from everstep.launcher.line import Line
from everstep.launcher.loop import Loop
from everstep.launcher.node import NodeSpec, Place, worker_environment
from everstep.launcher.starter import Starter
from everstep.launcher.verdict import JobEnd, Verdict, WorkerEnd, decide_replacement, decide_verdict
from everstep.process import RUNNING, STOPPED, Child
from everstep.wire import AgentOrders, KillOrder, WorkerExit, WorkerState

log = logging.getLogger("everstep")

STACKS_SIGNAL = signal.SIGUSR2  # workers answer it with the stacks of all their threads in their log
_STACKS_S = 0.5  # how long they have for it
_SURVIVORS_FIRST_S = 0.5  # a replacement is started so long after a death
_STOP_GRACE_S = 2.0  # a stopped job's workers hear it from the coordinator and end by themselves
_ANSWER_S = 4.0
_FAREWELL_S = 5.0  # how long an agent that has nothing left to run tries to tell the coordinator


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    place: Place
    child: Child
    board: Path
    log: Path


class Agent:
    """Runs one node's part of a job. `run` is to be called once, from the main thread."""

    def __init__(
        self,
        node: NodeSpec,
        *,
        starter: Starter,
        say: Callable[[str], None],
        on_worker: Callable[[Worker], None] = lambda worker: None,
    ) -> None:
        self._node, self._starter, self._say, self._on_worker = node, starter, say, on_worker
        self._loop = loop = Loop()
        self._line = Line(
            self._connect,
            agent=node.agent,
            incarnation=uuid.uuid4().hex,
            heartbeat_s=node.heartbeat_s,
            look=self._look,
            on_orders=lambda orders: loop.post(lambda: self._obey(orders)),
            on_slot=lambda request, worker: loop.post(
                lambda: self._starter.when_settled(lambda: self._start(request, worker))
            ),
            on_failure=lambda error: loop.post(lambda: self._give_up(error)),
            say=say,
        )
        self._workers: dict[str, Worker] = {}
        self._ends: list[WorkerEnd] = []
        self._awaited: dict[str, int] = {}  # slot requests under way: the local rank that each is for
        self._num_restarts = 0
        self._condemned: set[str] = set()
        self._signal_number: int | None = None
        self._job: JobEnd | None = None
        self._failure: EverstepError | None = None
        self._is_ending = False
        self._master_port = _free_port()

    def run(self) -> Verdict:
        with self._signals():
            try:
                self._starter.attach(self._loop, self._say)
                self._line.open()
                for local_rank in range(self._node.num_workers):
                    self._ask_worker(local_rank)
                while self._workers or self._awaited:
                    self._loop.turn()
            finally:
                self._kill_all("the agent ends")
                self._starter.close()
                self._line.close(_FAREWELL_S)
        verdict = decide_verdict(self._ends, self._job_end(), signal_number=self._signal_number)
        emit("agent.ended", agent=self._node.agent, exit_code=verdict.exit_code, reason=verdict.reason)
        return verdict

    def _connect(self) -> Coordinator:
        node = self._node
        # Not much longer than a call is held: after a cut the network may swallow what is sent on an old connection.
        answer_s = node.heartbeat_s + _ANSWER_S
        return Coordinator(node.coordinator_url, env.read_token(node.token_file), node.job, answer_s=answer_s)

    def _job_end(self) -> JobEnd:
        """How the job ended, asked for if all workers ended before we heard of it, or if we had to give up."""
        if self._job is not None or self._signal_number is not None:
            return self._job or JobEnd()
        gave_up = self._failure.message if self._failure else ""
        try:
            with self._connect() as coordinator:
                view = coordinator.view()
        except EverstepError as error:
            log.warning("the coordinator could not be asked how the job ended: %s", error.message)
            return JobEnd(stop_reason=gave_up)
        if view.is_finished:  # and whoever comes after its end is refused
            return JobEnd(is_finished=True)
        return JobEnd(stop_reason=view.reason if view.is_stopped else gave_up)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def handle(number: int, frame: FrameType | None) -> None:
            self._loop.post(lambda: self._interrupt(number))

        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        for number, handler in before.items():
            if handler != signal.SIG_IGN:  # nohup
                signal.signal(number, handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # --- workers ----------------------------------------------------------------------------------

    def _ask_worker(self, local_rank: int, *, delay_s: float = 0.0) -> None:
        request = uuid.uuid4().hex
        self._awaited[request] = local_rank
        self._loop.after(delay_s, lambda: self._line.ask_slot(request))

    def _start(self, request: str, worker: str | None) -> None:
        local_rank = self._awaited.pop(request, None)
        self._is_ending = self._is_ending or worker is None  # the job was over before we heard of it
        if local_rank is None or worker is None or self._is_ending:
            return
        place = Place(
            worker=worker, local_rank=local_rank, num_restarts=self._num_restarts, master_port=self._master_port
        )
        directory = self._node.directory
        log = place.log(directory)
        with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "wb") as output:
            child = self._starter.start(
                self._node.command, env=worker_environment(self._node, place, os.environ), output=output
            )
        started = Worker(place=place, child=child, board=place.board(directory), log=log)
        self._workers[worker] = started
        self._loop.watch(child, lambda: self._bury(started))
        emit("worker.started", worker=worker, pid=child.pid, agent=self._node.agent)
        self._say(f"{worker} started (pid {child.pid})")
        self._on_worker(started)

    def _bury(self, worker: Worker) -> None:
        name = worker.place.worker
        if self._workers.get(name) is not worker:  # killed and buried in the same turn
            return
        self._loop.forget(worker.child)
        ended = worker.child.wait()
        assert ended is not None
        progress = read_board(worker.board)
        # First of all: the others wait for nothing but this.
        self._line.tell_exit(name, WorkerExit(exit_code=ended.code, step=progress.step, leaf=progress.leaf))
        del self._workers[name]
        end = WorkerEnd(worker=name, exit=ended, step=progress.step, leaf=progress.leaf)
        self._ends.append(end)
        emit(
            "worker.exited",
            worker=name,
            exit_code=ended.code,
            signal=ended.signal,
            step=progress.step,
            leaf=progress.leaf,
        )
        choice = decide_replacement(
            ended,
            num_restarts=self._num_restarts,
            max_restarts=self._node.max_restarts,
            is_ending=self._is_ending,
        )
        self._say(f"{name} finished" if ended.is_good else f"{name} ended: {end}; {choice.reason}")
        if choice.is_replaced:
            self._num_restarts += 1
            # Survivors first: while they redo the step, a new process that imports torch would take their cores.
            self._ask_worker(worker.place.local_rank, delay_s=_SURVIVORS_FIRST_S if self._workers else 0.0)

    def _look(self) -> list[WorkerState]:
        """What the report says of the workers; called from the line's thread."""
        states = []
        for name, worker in list(self._workers.items()):
            state = worker.child.state
            if state in (RUNNING, STOPPED):
                step = read_board(worker.board).step
                states.append(WorkerState(worker=name, is_running=state == RUNNING, step=step))
        return states

    # --- ends -------------------------------------------------------------------------------------

    def _obey(self, orders: AgentOrders) -> None:
        for order in orders.kill:
            self._kill_on_order(order)
        if orders.is_ended and self._job is None and self._signal_number is None:
            self._is_ending = True
            self._job = JobEnd(is_finished=not orders.reason, stop_reason=orders.reason)
            if orders.reason:
                self._say(f"the job was stopped: {orders.reason}")
                self._loop.after(_STOP_GRACE_S, self._terminate_all)
            else:
                self._dismiss_late()

    def _dismiss_late(self) -> None:
        """The job is done. Whoever is still on its way, having done no step while others have, need not come."""
        steps = {name: read_board(worker.board).step for name, worker in self._workers.items()}
        if any(steps.values()) or any(end.step for end in self._ends):
            for name in [name for name, step in steps.items() if step == 0]:
                self._workers[name].child.signal(signal.SIGTERM, is_for_group=False)

    def _kill_on_order(self, order: KillOrder) -> None:
        worker = self._workers.get(order.worker)
        if worker is None or order.worker in self._condemned:
            return
        self._condemned.add(order.worker)
        self._say(f"{order.worker} is killed: {order.reason}")
        if order.wants_stacks and worker.child.state == RUNNING:
            worker.child.signal(STACKS_SIGNAL, is_for_group=False)
            self._loop.after(_STACKS_S, lambda: self._kill(worker, order.reason))
        else:
            self._kill(worker, order.reason)

    def _kill(self, worker: Worker, reason: str) -> None:
        if self._workers.get(worker.place.worker) is not worker:  # it ended meanwhile
            return
        worker.child.signal(signal.SIGKILL)
        emit("worker.killed", worker=worker.place.worker, reason=reason)

    def _interrupt(self, number: int) -> None:
        if self._signal_number is not None and number == signal.SIGINT:
            self._kill_all("interrupted twice")
        if self._signal_number is None:
            self._signal_number, self._is_ending = number, True
            self._say(f"{signal.Signals(number).name}: workers have {self._node.shutdown_s:.0f} s to end")
            self._terminate_all()

    def _terminate_all(self) -> None:
        self._awaited.clear()
        # To the worker alone: its data loaders must serve it until it has left.
        for worker in list(self._workers.values()):
            worker.child.signal(signal.SIGTERM, is_for_group=False)
        self._loop.after(
            self._node.shutdown_s, lambda: self._kill_all(f"still there {self._node.shutdown_s:.0f} s later")
        )

    def _kill_all(self, reason: str) -> None:
        self._is_ending = True
        for worker in list(self._workers.values()):
            self._kill(worker, reason)
            self._bury(worker)
        self._awaited.clear()

    def _give_up(self, error: EverstepError) -> None:
        if self._is_ending:
            return
        self._is_ending, self._failure = True, error
        self._say(f"giving up: {error}")
        self._terminate_all()


def node_address(coordinator_host: str, coordinator_port: int) -> str:
    """The address that this node reaches the coordinator from; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((coordinator_host, coordinator_port))
        except OSError as error:
            raise UsageError(f"no way to the coordinator at {coordinator_host}: {error}") from error
        return str(probe.getsockname()[0])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
