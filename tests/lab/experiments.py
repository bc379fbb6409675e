"""Experiments without pools: specifications, and trials that are nothing but their calls."""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from everstep import wire
from everstep.checkpoint.manifest import CheckpointKey
from everstep.client.calls import Coordinator
from everstep.errors import CoordinatorUnreachable
from everstep.wire.pool import ENABLED
from lab.command import until

SPACE = {"lr": {"log": [1e-4, 1e-1]}, "layers": {"int": [1, 8]}}


def spec(searcher: str = "random", /, **given: Any) -> wire.ExperimentSpec:
    """`given`: of the searcher, unless the specification has a field of that name."""
    fields = {key: given.pop(key) for key in list(given) if key in wire.ExperimentSpec.__dataclass_fields__}
    if searcher not in ("single", "grid"):
        given = {"max_trials": 4, **given}
    section = {"name": searcher, "metric": "loss", "max_length": {"batches": 64}, **given}
    defaults = {"request": uuid.uuid4().hex, "searcher": section, "hyperparameters": SPACE, "seed": 7}
    return wire.ExperimentSpec(**{**defaults, **fields})


class ToyTrials:
    """Trains the trials of an experiment: each has a loss that depends on its number and length."""

    def __init__(self, url: str, token: str, experiment: int) -> None:
        self._url, self._token, self.experiment = url, token, experiment
        self.people = Coordinator(url, token, "none")

    def close(self) -> None:
        self.people.close()

    def job(self, trial: int) -> Coordinator:
        return Coordinator(self._url, self._token, wire.trial_job(self.experiment, trial))

    def open(self, trial: int) -> Coordinator:
        """The job of a trial, made as the pool makes it."""
        coordinator = self.job(trial)
        coordinator.create_job(wire.JobSpec())
        return coordinator

    def loss(self, trial: int, length: int) -> float:
        return (trial * 7919 % 101) / 100 + 1 / (length + 1)

    def train(self, trial: int) -> str:
        """One target, to its end; the wish that follows."""
        with self.open(trial) as job:
            target = job.target(wire.TargetRequest(wait_s=0.0))
            if target.wish != wire.TRAIN or target.length is None:
                return target.wish
            return job.report_result(
                wire.TrialResult(length=target.length, metric=self.loss(trial, target.length), batches=target.length)
            ).wish

    def train_all(self, on_trial: Callable[[int], Any] = lambda _trial: None) -> wire.ExperimentView:
        """Until the experiment is over."""

        def is_over() -> bool:
            for each in self.trials():
                assert each.reason, each
                if each.state not in (*wire.ENDED, "WAITING"):
                    on_trial(each.trial)
                    self.train(each.trial)
            view = self.view()
            assert view.reason, view
            return view.state in wire.ENDED

        until(is_over, lambda: f"{self.view()}")
        return self.view()

    def view(self) -> wire.ExperimentView:
        return self.people.experiment(self.experiment)

    def trials(self) -> list[wire.TrialView]:
        found: list[wire.TrialView] = []
        while True:
            page = self.people.trials(self.experiment, start=len(found), limit=1000)
            found += page.trials
            if len(found) >= page.num_found:
                return found

    def story(self) -> list[tuple[Any, ...]]:
        """All that must not depend on deaths and times."""
        keys = ("trial", "hparams", "seed", "state", "target", "length", "latest", "best", "best_length", "bracket")
        return [tuple(getattr(each, key) for key in keys) for each in self.trials()]


def patiently(call: Callable[[], Any]) -> Any:
    """Again and again, while the coordinator is dead."""
    answers: list[Any] = []

    def is_answered() -> bool:
        try:
            answers.append(call())
        except CoordinatorUnreachable:
            return False
        return True

    until(is_answered, lambda: "the coordinator did not answer")
    return answers[0]


class ToyPool:
    """A pool's agent whose trials train by nothing but their calls, each to where it is told to. `trained`: by job, the
    lengths that were trained."""

    def __init__(
        self, url: str, token: str, kind: str = "toy", *, name: str = "toy", num_slots: int = 2, pool: str = "default"
    ) -> None:
        self._url, self._token, self.name, self._num_slots = url, token, name, num_slots
        self.pool = pool
        self.last: wire.PoolOrders | None = None
        self.people = Coordinator(url, token, "none")
        self.kind, self.incarnation = kind, uuid.uuid4().hex
        self.trained: dict[str, list[int]] = {}
        self.orders: dict[str, wire.AssignmentOrder] = {}
        self.period = 0  # validations that are planned
        self.place: Path | None = None  # of checkpoints; None: not on this machine
        self.environment = wire.NodeEnvironment()
        self._states: dict[int, wire.AssignmentState] = {}
        self._seen = 0

    def close(self) -> None:
        self.people.close()

    def train(self, experiment: int) -> wire.ExperimentView:
        """Until it is over."""

        def is_over() -> bool:
            self.work()
            return self.people.experiment(experiment).state in wire.ENDED

        until(is_over, lambda: f"{self.people.experiment(experiment)}\n{self.people.trials(experiment)}")
        return self.people.experiment(experiment)

    def work(self) -> None:
        """One round: begin what is ordered, train what may be trained, end what has to."""
        orders = self.report()
        for each in orders.run:
            if each.number not in self._states:
                self._states[each.number] = wire.AssignmentState(number=each.number, state="running")
                self.orders[each.job] = each
            if self._states[each.number].state == "running" and self._train(each.job):
                self._end(each.number)
        for end in orders.end:
            self._end(end.number, was_asked=True)

    def report(self) -> wire.PoolOrders:
        """Begin nothing of what is ordered."""
        message = wire.PoolReport(
            incarnation=self.incarnation,
            num_slots=self._num_slots,
            kind=self.kind,
            assignments=list(self._states.values()),
            seen=self._seen,
            wait_s=0.05,
            environment=self.environment,
        )
        orders = self.last = self.people.report_pool(self.pool, self.name, message)
        self._seen = orders.number
        for number in orders.confirmed:
            self._states.pop(number, None)
        return orders

    def _end(self, number: int, *, was_asked: bool = False) -> None:
        self._states[number] = wire.AssignmentState(number=number, state="ended", was_asked=was_asked)

    def _train(self, job: str) -> bool:
        """As far as it goes; whether the trial is over."""
        order = self.orders[job]
        with Coordinator(self._url, self._token, job) as trial:
            while True:
                target = trial.target(wire.TargetRequest(wait_s=0.0))
                done = self.trained.setdefault(job, [])
                begun = done[-1] if done else order.resume_from_step
                if target.wish != wire.TRAIN or target.length is None or target.length <= begun:
                    return target.wish == wire.STOP
                self._train_to(trial, order, begun, target.length)
                done.append(target.length)

    def _train_to(self, trial: Coordinator, order: wire.AssignmentOrder, begun: int, length: int) -> None:
        planned = range(self.period, length + 1, self.period) if self.period else ()
        for at in sorted({*planned, length}):
            if at > begun:
                trial.report_checkpoint(self._saved(f"{order.job}-{at}", at))
                is_planned = bool(self.period) and at % self.period == 0
                trial.report_result(toy_result(order.hparams, at, is_planned=is_planned))

    def _saved(self, uuid: str, step: int) -> wire.CheckpointReport:
        if self.place is None:
            return wire.CheckpointReport(uuid=uuid, uri="file:///none", step=step)
        place = self.place / uuid
        (place / CheckpointKey(generation=0, step=step).folder).mkdir(parents=True)
        return wire.CheckpointReport(uuid=uuid, uri=place.as_uri(), step=step)


class BusyPool(ToyPool):
    """Its trials hold their slots until they are asked to leave. `joined`: it reports all the time, as a real agent, in
    a thread of its own."""

    def _train(self, job: str) -> bool:
        return False

    @contextmanager
    def joined(self) -> Iterator[BusyPool]:
        """In the end, all that runs on its slots is killed, and it leaves."""
        self._is_over = threading.Event()
        self.work()
        self._thread = threading.Thread(target=self._report_on)
        self._thread.start()
        try:
            yield self
            if self._thread.is_alive():
                self._finish()
        finally:
            self.leave()
            self.close()

    def _report_on(self) -> None:
        while not self._is_over.is_set():
            patiently(self.work)

    def _finish(self) -> None:
        for each in self.people.experiments(state="ACTIVE").experiments:
            self.people.act(each.experiment, wire.ExperimentAction(action="kill"))
        self.change(ENABLED, is_all=True)
        until(lambda: not self.held(), lambda: f"{self.view()}")

    def leave(self) -> None:
        if not self._is_over.is_set():
            self._is_over.set()
            self._thread.join()
            message = wire.AgentLeave(incarnation=self.incarnation, reason="it was asked to")
            self.people.pool_agent_leaves(self.pool, self.name, message)

    def held(self) -> list[tuple[int, int]]:
        """What runs on its slots, by the coordinator."""
        return [(slot.experiment, slot.trial) for slot in self.view().slots if slot.assignment]

    def view(self) -> wire.PoolAgentView:
        (found,) = [each for each in self.people.pool(self.pool).agents if each.agent == self.name]
        return found

    def change(self, state: str, *names: str, **more: Any) -> wire.PoolView:
        return self.people.change_agents(self.pool, wire.AgentsChange(state=state, agents=list(names), **more))


def toy_result(hparams: dict[str, Any], length: int, *, is_planned: bool) -> wire.TrialResult:
    """Of the hyperparameters and the length alone."""
    digest = hashlib.sha256(json.dumps([hparams, length], sort_keys=True).encode()).hexdigest()
    metric = int(digest[:6], 16) / 0xFFFFFF + 10 / length
    return wire.TrialResult(length=length, metric=metric, batches=length, digest=digest, is_planned=is_planned)
