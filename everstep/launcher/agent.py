"""The agent: starts a node's workers, sees their deaths within a millisecond, obeys the coordinator, replaces the dead.

All workers of a job are started together (an attempt). Workers that regroup are replaced one by one; all others are
ended and restarted together when the coordinator says so. One thread decides and acts; it waits for process ends,
signals, orders and deadlines in one place (event_loop.py) and never for the coordinator (reporting.py does). Ends with
the job, or when none of its regrouping workers is left, and leaves no process behind: on SIGINT and SIGTERM in good
order; if it is killed, the kernel (process.py) and a sweeper (cleanup.py) end its workers. Knows nothing of torch."""

from __future__ import annotations

import logging
import os
import signal
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from everstep import env
from everstep.addresses import ReservedPort
from everstep.client.calls import Coordinator
from everstep.errors import EverstepError
from everstep.events import emit
from everstep.ipc.event_loop import EventLoop
from everstep.ipc.progress_page import allocate
from everstep.launcher.cleanup import Sweeper
from everstep.launcher.decisions import JobEnd, Verdict, WorkerEnd, decide_replacement, decide_verdict
from everstep.launcher.known_states import Sighting
from everstep.launcher.late_workers import LateWorkers
from everstep.launcher.local_worker import LocalWorker
from everstep.launcher.node import NodeSpec, WorkerRanks, worker_environment
from everstep.launcher.node_data import NodeData
from everstep.launcher.probe import Probe
from everstep.launcher.reporting import AgentReporter
from everstep.launcher.saver_process import SaverProcess
from everstep.launcher.stacks import ask_for_stacks
from everstep.launcher.starter import Starter
from everstep.launcher.system_metrics import SystemSampler
from everstep.process import RUNNING, STOPPED, Exit, Orphans, ending_code
from everstep.storage import private_file
from everstep.wire import (
    AgentOrders,
    AgentReport,
    AttemptOrder,
    JobView,
    KillOrder,
    ReservedWorker,
    WorkerExit,
)

log = logging.getLogger("everstep")

_STACKS_S = 0.5  # how long workers have to print their stacks
_RESTART_GRACE_S = 5.0  # from SIGTERM to SIGKILL when all workers are restarted: most of them are stuck anyway
_SURVIVORS_FIRST_S = 0.5  # a replacement is started this long after a death …
_FORK_SOON_S = 0.1  # … and sooner if it is a fork of the nursery, which takes little of the survivors' cores
_NO_ROOM_S = 5.0  # one that could not start on a full disk is tried again after this
_STOP_GRACE_S = 2.0  # workers of a stopped job learn that from the coordinator and end by themselves
_ANSWER_S = 4.0  # beyond a call's hold; short, because after a cut the network may swallow data on an old connection
_REAP_S = 5.0  # loader processes of killed workers come to process 1
_FAREWELL_S = 5.0  # how long an agent that has nothing left to run tries to report that


class Agent:
    """Runs one node's part of a job. Call `run` once, from the main thread."""

    def __init__(
        self,
        node: NodeSpec,
        starter: Starter,
        *,
        say: Callable[[str], None],
        on_worker: Callable[[LocalWorker], None] = lambda worker: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_end`: when all has ended here, and before the coordinator knows: then the last output is shown, since
        a watcher stops as soon as all nodes have left."""
        self._node, self._starter, self._say, self._on_worker, self._on_end = node, starter, say, on_worker, on_end
        self._loop = loop = EventLoop()
        self._incarnation = uuid.uuid4().hex
        self._probe = Probe(node.address)
        self._sweeper = Sweeper()
        saver_path = node.directory / f"{node.agent.replace('/', '_')}.saver"
        self._saver = SaverProcess(saver_path, loop, say)
        self._data = NodeData(node.directory / f"{node.agent.replace('/', '_')}.data", loop, say)
        self._reporter = AgentReporter(
            self._connect,
            agent=node.agent,
            incarnation=self._incarnation,
            heartbeat_s=node.heartbeat_s,
            look=self._look,
            on_orders=lambda orders: loop.post(lambda: self._obey(orders)),
            on_reserved=lambda request, reserved: loop.post(
                lambda: self._starter.when_settled(lambda: self._replace(request, reserved))
            ),
            on_failure=lambda error: loop.post(lambda: self._give_up(error)),
            say=say,
            wants_view=self._wants_view,
            on_view=lambda view: loop.post(lambda: self._tell_wait(view)),
        )
        self._workers: dict[str, LocalWorker] = {}
        self._system = SystemSampler(
            self._connect,
            node.agent,
            lambda: {name: each.child.pid for name, each in self._workers.copy().items()},
            say=say,
        )
        self._ends: list[WorkerEnd] = []
        self._awaited: dict[str, WorkerRanks] = {}  # requests for replacements under way: the place that each is for
        self._refused: set[str] = set()  # workers for which no restart was left
        self._attempt = -1  # the latest whose workers were started here …
        self._due: AttemptOrder | None = None  # … and the one to be started when they are gone
        self._is_ending_attempt = False
        self._is_regrouping = False
        self._told_why = ""
        self._late = LateWorkers(node.agent, say)
        self._signal_number: int | None = None
        self._job: JobEnd | None = None
        self._failure: EverstepError | None = None
        self._is_ending = False
        self._port = ReservedPort(node.address)  # that rank 0 of the next attempt could listen at

    def run(self) -> Verdict:
        node = self._node
        with self._loop.signals(node.signals, self._interrupt), self._sweeper:
            try:
                self._starter.attach(self._loop, self._say)
                self._probe.open()
                if node.node_saver is None or not node.node_saver.is_for_buckets:
                    self._saver.open()
                if node.node_data is None:
                    self._data.open()
                self._reporter.open()
                self._system.open()
                if os.getpid() == 1:  # in a container, without an init
                    self._reap(Orphans())
                while not self._is_done:
                    self._loop.turn()
            finally:
                self._kill_all("the agent ends")
                self._starter.close()
                if node.node_saver is not None:
                    node.node_saver.await_written(self._say)
                self._saver.close()
                self._data.close()
                self._system.close()
                self._on_end()  # sends the last lines, also those that were said just now
                self._reporter.report_leaving("its work is done")
                self._reporter.close(_FAREWELL_S)
                self._probe.close()
                self._port.close()
        ends = [replace(end, is_replaceable=end.worker not in self._refused) for end in self._ends]
        verdict = decide_verdict(ends, self._job_end(), signal_number=self._signal_number)
        emit("agent.ended", agent=self._node.agent, exit_code=verdict.exit_code, reason=verdict.reason)
        return verdict

    def _reap(self, orphans: Orphans) -> None:
        orphans.reap()
        self._loop.after(_REAP_S, lambda: self._reap(orphans))

    @property
    def _is_done(self) -> bool:
        """Nothing is left to run, and nothing will come: the job is over, or continues without this node."""
        has_left = self._is_regrouping and self._attempt >= 0
        return not (self._workers or self._awaited or self._due) and (self._is_ending or has_left)

    def _connect(self) -> Coordinator:
        node = self._node
        return Coordinator(node.coordinator_url, env.read_token(node.token_file), node.job, answer_s=_ANSWER_S)

    def _job_end(self) -> JobEnd:
        """How the job ended, from the coordinator if all workers ended before we knew, or if we had to give up."""
        is_clear = self._job is not None and not any(end.exit.signal for end in self._ends)
        if is_clear or self._signal_number is not None:
            return self._job or JobEnd()
        gave_up = self._failure.message if self._failure else ""
        try:
            with self._connect() as coordinator:
                view = coordinator.view()
        except EverstepError as error:
            log.warning("the coordinator could not be asked how the job ended: %s", error.message)
            return self._job or JobEnd(stop_reason=gave_up)
        return JobEnd.of(view, gave_up)

    # --- workers ----------------------------------------------------------------------------------

    def _begin_due(self) -> None:
        """Start the workers of the attempt that is due, unless something has changed while they had to wait."""
        order = self._due
        if order is None or self._workers:
            return
        self._attempt, self._due, self._is_ending_attempt = order.number, None, False
        self._port.renew()  # the one before is from now on rank 0's, if that is here
        for note in order.notes:
            self._say(note)
        for local_rank in range(len(order.workers)):
            self._start(WorkerRanks.of(order, local_rank))

    def _end_attempt(self, reason: str, *, wants_stacks: bool) -> None:
        """End all workers, to be restarted with all others."""
        if self._is_ending_attempt or not self._workers:
            return
        self._is_ending_attempt = True
        self._awaited.clear()
        self._say(f"all workers are ended: {reason}")
        ended = list(self._workers.values())
        if wants_stacks:
            ask_for_stacks({worker.child: worker.files.stderr for worker in ended})
        for worker in ended:
            self._loop.after(_STACKS_S if wants_stacks else 0.0, partial(self._terminate, worker))
            self._loop.after(_STACKS_S + _RESTART_GRACE_S, partial(self._kill, worker, reason))

    def _drop_due(self) -> None:
        """An attempt that was over before it began here: no node must wait for its workers' end."""
        due, self._due = self._due, None
        self._report_never_started(due.workers if due else [])

    def _report_never_started(self, past: Sequence[str]) -> None:
        """An attempt may begin and be over while the coordinator does not hear from us: then only we know that our part
        never began, and the next one would wait for the end of those workers."""
        for name in past:
            if name not in self._workers:
                self._reporter.report_exit(name, WorkerExit(exit_code=-signal.SIGTERM))

    def _ask_replacement(self, place: WorkerRanks, *, delay_s: float) -> None:
        request = uuid.uuid4().hex
        self._awaited[request] = place
        self._loop.after(delay_s, lambda: self._reporter.ask_replacement(request, place.worker))

    def _replace(self, request: str, reserved: ReservedWorker | None) -> None:
        place = self._awaited.pop(request, None)
        self._is_ending = self._is_ending or reserved is None  # the job was over before we heard of it
        if place is None or reserved is None or self._is_ending:
            return
        used, allowed = reserved.num_restarts, place.order.max_restarts
        if not reserved.worker:
            self._refused.add(place.worker)
            budget = f"{used} of {allowed} restarts are used" if allowed else "no restart is allowed (--max-restarts)"
            self._say(f"{place.worker} is not replaced: {budget}")
            return
        counted = f", restart {used} of {allowed}" if reserved.is_restart else ""
        self._say(f"{place.worker} is replaced by {reserved.worker}{counted}")
        self._start(replace(place, worker=reserved.worker, num_restarts=used))

    def _start(self, place: WorkerRanks) -> None:
        worker = place.worker
        files = place.files(self._node.directory)
        data = self._node.node_data or self._data.path
        environment = worker_environment(self._node, place, env.everything(), saver=self._saver.path, data=data)
        try:
            files.make(attempt=place.num_restarts, local_rank=place.local_rank)
            allocate(files.board)
            # Appending, so that what a worker starts itself may write to it too.
            with private_file.append(files.stdout) as output, private_file.append(files.stderr) as errors:
                child = self._starter.start(self._node.command, env=environment, output=output, errors=errors)
        except OSError as error:  # a full disk, no process left: the other workers of this node continue
            self._starter.problem = f"{worker} cannot be started: {error}"
            self._say(self._starter.problem)
            self._reporter.report_exit(worker, WorkerExit(exit_code=1))
            ended = Exit(code=1)
            self._ends.append(WorkerEnd(worker=worker, exit=ended, attempt=place.order.number))
            if decide_replacement(ended, is_ending=self._is_ending, is_regrouping=self._is_regrouping).is_replaced:
                self._ask_replacement(place, delay_s=_NO_ROOM_S)
            return
        self._starter.problem = ""
        self._sweeper.watch(child.pid)
        started = LocalWorker(place=place, child=child, files=files)
        self._workers[worker] = started
        self._loop.watch(child, lambda: self._bury(started))
        emit("worker.started", worker=worker, pid=child.pid, agent=self._node.agent)
        self._say(f"{worker} started (pid {child.pid})")
        self._on_worker(started)

    def _bury(self, worker: LocalWorker) -> None:
        name = worker.name
        if self._workers.get(name) is not worker:  # killed and buried in the same turn
            return
        self._loop.forget(worker.child)
        ended = worker.child.wait()
        assert ended is not None
        self._report_exit(worker, ended.code)  # first of all: the others wait for nothing else
        self._sweeper.forget(worker.child.pid)
        del self._workers[name]
        self._late.note_end()
        end = worker.end_with(ended)
        self._ends.append(end)
        if worker.place.order.max_restarts == 0:
            self._refused.add(name)
        reached = {"step": end.step, "micro_batch": end.micro_batch}
        emit("worker.exited", worker=name, exit_code=ended.code, signal=ended.signal, **reached)
        is_ending = self._is_ending or self._is_ending_attempt
        num_left = len(self._workers)
        choice = decide_replacement(ended, is_ending=is_ending, is_regrouping=self._is_regrouping, num_left=num_left)
        if not self._is_ending_attempt:
            self._say(f"{name} finished" if ended.is_good else f"{name} ended: {end}{choice.reason}")
        if choice.is_replaced:
            # Survivors first: while they redo the step, a new process that imports torch would take their cores.
            soon_s = _FORK_SOON_S if self._starter.nursery_pid else _SURVIVORS_FIRST_S
            self._ask_replacement(worker.place, delay_s=soon_s if self._workers else 0.0)
        if self._due is not None and not self._workers:
            self._starter.when_settled(self._begin_due)

    def _sense(self, worker: LocalWorker) -> None:
        """A worker begins to end. If it dies, the others need not wait until the kernel is done with it."""
        is_here = self._workers.get(worker.name) is worker
        if is_here and (code := ending_code(worker.child.pid)):
            self._report_exit(worker, code)

    def _report_exit(self, worker: LocalWorker, code: int) -> None:
        """Once, by whichever notices it first: `_sense` or `_bury`."""
        if not worker.is_exit_reported:
            worker.is_exit_reported = True
            self._reporter.report_exit(worker.name, worker.exit_with(code))

    def _look(self) -> tuple[AgentReport, Mapping[str, Sighting]]:
        """The report on this node, and its workers; called from the reporter's thread."""
        seen, active_at = dict[str, Sighting](), 0.0
        for name, worker in list(self._workers.items()):
            state = worker.child.state
            if state in (RUNNING, STOPPED):
                worker.listen(partial(self._loop.post, partial(self._sense, worker)))
                seen[name] = Sighting(state == RUNNING, worker.progress)
                active_at = max(active_at, seen[name].progress.since, worker.files.written_at())
        node = self._node
        report = AgentReport(
            incarnation=self._incarnation,
            node=node.agent,
            workers=[],
            num_workers=0 if self._is_ending else node.num_workers,
            address=node.address,
            probe_port=self._probe.port,
            node_rank=node.node_rank,
            free_port=self._port.number,
            unreachable=self._probe.unreachable,
            fitness=node.fitness,
            silent_s=max(0.0, time.monotonic() - active_at) if seen else 0.0,
        )
        return report, seen

    # --- ends -------------------------------------------------------------------------------------

    def _obey(self, orders: AgentOrders) -> None:
        for order in orders.kill:
            self._kill_on_order(order)
        self._is_regrouping = orders.is_regrouping
        self._follow_attempt(orders)
        if orders.is_ended and self._job is None and self._signal_number is None:
            self._is_ending = True
            self._late.note_end()
            self._job = JobEnd(is_finished=not orders.reason, stop_reason=orders.reason)
            if orders.reason:
                self._say(f"the job was stopped: {orders.reason}")
                self._loop.after(_STOP_GRACE_S, self._terminate_all)
            else:
                self._dismiss_late()

    def _follow_attempt(self, orders: AgentOrders) -> None:
        if orders.is_attempt_closed or orders.attempt > self._attempt >= 0:
            self._end_attempt(orders.why, wants_stacks=orders.wants_stacks)
        (start,) = orders.start or (None,)
        if start is not None:
            self._probe.follow(orders.peers)
        elif orders.why != self._told_why and not self._workers and not self._is_ending and not orders.is_ended:
            self._told_why = orders.why
            self._say(f"waiting: {orders.why}")
        if start is None or start.number != (self._due.number if self._due else -1):
            self._drop_due()
        if start is not None and start.number > self._attempt and not self._is_ending:
            is_news, self._due = self._due is None, start
            if is_news and not self._workers:
                self._starter.when_settled(self._begin_due)
        self._report_never_started(orders.past)

    def _wants_view(self) -> bool:
        """Whether a worker is late that ought to have ended. Called from the reporter's thread, too."""
        has_ended = self._job is not None or (
            not self._is_regrouping and any(end.attempt == self._attempt for end in self._ends)
        )
        is_busy = self._awaited or self._due or self._is_ending_attempt
        return has_ended and self._late.is_due() and not is_busy

    def _tell_wait(self, view: JobView) -> None:
        if self._wants_view():
            running = {name: worker.child.pid for name, worker in self._workers.items()}
            self._late.tell(view, running, is_regrouping=self._is_regrouping)

    def _dismiss_late(self) -> None:
        """The job is done. A worker that is still starting, and has done no step while others have, is not needed."""
        steps = {name: worker.progress.step for name, worker in self._workers.items()}
        if any(steps.values()) or any(end.step for end in self._ends):
            for name in [name for name, step in steps.items() if step == 0]:
                self._terminate(self._workers[name])

    def _kill_on_order(self, order: KillOrder) -> None:
        worker = self._workers.get(order.worker)
        if worker is None or worker.is_condemned:
            return
        worker.is_condemned = True
        self._say(f"{order.worker} is killed: {order.reason}")
        if order.wants_stacks and worker.child.state == RUNNING:
            ask_for_stacks({worker.child: worker.files.stderr})
            self._loop.after(_STACKS_S, lambda: self._kill(worker, order.reason))
        else:
            self._kill(worker, order.reason)

    def _terminate(self, worker: LocalWorker) -> None:
        if self._workers.get(worker.name) is worker:
            worker.was_asked = True
            # To the worker alone: its data loaders must serve it until it has left.
            worker.child.signal(signal.SIGTERM, is_for_group=False)

    def _kill(self, worker: LocalWorker, reason: str) -> None:
        if self._workers.get(worker.name) is not worker:  # it ended meanwhile
            return
        worker.child.signal(signal.SIGKILL)
        emit("worker.killed", worker=worker.name, reason=reason)

    def _interrupt(self, number: int) -> None:
        if self._signal_number is not None and number == signal.SIGINT:
            self._kill_all("interrupted twice")
        if self._signal_number is None:
            self._signal_number, self._is_ending = number, True
            self._reporter.report_leaving(f"its agent got {signal.Signals(number).name}")
            self._terminate_all()
            self._say(f"{signal.Signals(number).name}: workers have {self._node.shutdown_s:.0f} s to end")

    def _terminate_all(self) -> None:
        self._awaited.clear()
        self._drop_due()
        for worker in list(self._workers.values()):
            self._terminate(worker)
        grace_s = self._node.shutdown_s
        self._loop.after(grace_s, lambda: self._kill_all(f"still there {grace_s:.0f} s later"))

    def _kill_all(self, reason: str) -> None:
        self._is_ending = True
        for worker in list(self._workers.values()):
            self._kill(worker, reason)
            self._bury(worker)
        self._awaited.clear()
        self._drop_due()

    def _give_up(self, error: EverstepError) -> None:
        if self._is_ending:
            return
        self._is_ending, self._failure = True, error
        self._say(f"giving up: {error}")
        self._terminate_all()
