"""Load for a coordinator that dies: nodes of a pool whose trials are nothing but their calls, and people who create,
pause and change experiments. A call without an answer is made again.

Each node compares what it is told with all that any node was told before. Knows nothing of the store."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.errors import Abandoned, Refused
from everstep.retry import patiently
from lab.experiments import ToyPool, spec, toy_result

T = TypeVar("T")

PATIENCE_S = 120.0  # of a call
NUM_SLOTS = 4
MOST_LIVE = 4  # experiments
MANY_RESTARTS = 10_000
CRASHES, NODE_RESTARTS = 0.02, 0.01  # of trials and nodes, per round

# Searches that end with the same winner however their trials run.
SEARCHES: dict[str, dict[str, Any]] = {
    "halving": {"searcher": "adaptive_asha", "max_trials": 6, "divisor": 3, "max_rungs": 2, "max_length": 9},
    "pairs": {"searcher": "random", "max_trials": 3, "max_length": 4, "min_slots": 2, "max_slots": 2},
}


@dataclass(frozen=True, slots=True)
class Given:
    """An assignment as a node was told of it."""

    agent: str
    incarnation: str
    slot: int
    experiment: int
    trial: int


class Heard:
    """What the coordinators have answered to all."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_answers = 0
        self.given: dict[int, Given] = {}  # by number
        self.experiments: dict[int, str] = {}  # those created, and of which search
        self.requests: dict[str, int] = {}
        self.killed: set[int] = set()  # those that people have killed
        self.error: BaseException | None = None
        self.is_over = threading.Event()

    def patiently(self, call: Callable[[], T]) -> T:
        answer = patiently(call, PATIENCE_S, stop=self.is_over)
        with self._changed:
            self._num_answers += 1
            self._changed.notify_all()
        return answer

    def note_given(self, number: int, given: Given) -> None:
        with self._changed:
            known = self.given.setdefault(number, given)
        assert known == given, f"assignment {number} was given to {known}, and now to {given}"

    def note_experiment(self, request: str, number: int, search: str) -> None:
        with self._changed:
            assert self.requests.setdefault(request, number) == number, "one request has created two experiments"
            assert self.experiments.setdefault(number, search) == search, "a number of an experiment was used twice"

    def fail(self, error: BaseException) -> None:
        if self.is_over.is_set() and isinstance(error, Abandoned):
            return
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()

    def wait_for_answers(self, number: int) -> None:
        with self._changed:
            enough = self._num_answers + number
            assert self._changed.wait_for(lambda: self._num_answers >= enough or self.error, PATIENCE_S)
        self.check()

    def check(self) -> None:
        if self.error:
            raise self.error


class _Busy(threading.Thread):
    """Rounds until all is over, or something is wrong."""

    def __init__(self, name: str, heard: Heard, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.heard, self.chance = heard, random.Random(f"{seed} {name}")

    def run(self) -> None:
        try:
            while not (self.heard.is_over.is_set() or self.heard.error):
                self.turn()
        except BaseException as error:
            self.heard.fail(error)
        finally:
            self.end()

    def turn(self) -> None:
        raise NotImplementedError

    def end(self) -> None: ...


class _Node(ToyPool):
    """A puppet of an agent, with slots on which trials train a little in each round."""

    def __init__(self, url: str, token: str, name: str, heard: Heard, chance: random.Random) -> None:
        super().__init__(url, token, name=name, num_slots=NUM_SLOTS)
        self._heard, self._chance = heard, chance
        self._jobs: dict[str, Coordinator] = {}
        self._exit_code = 0  # of the process that ends now
        self._over: set[int] = set()  # confirmed

    def close(self) -> None:
        for each in self._jobs.values():
            each.close()
        super().close()

    def restart(self) -> None:
        self.incarnation, self._seen = uuid.uuid4().hex, 0
        self._states.clear()

    def report(self) -> wire.PoolOrders:
        orders = self._heard.patiently(super().report)
        self._over.update(orders.confirmed)
        for each in orders.run:
            assert each.number not in self._over, (
                f"assignment {each.number} has ended on {self.name}, and is given again"
            )
            given = Given(self.name, self.incarnation, each.slot, each.experiment, each.trial)
            self._heard.note_given(each.number, given)
        running = {number for number, state in self._states.items() if state.state == "running"}
        slots = [self._heard.given[number].slot for number in running | {each.number for each in orders.run}]
        assert len(set(slots)) == len(slots), f"two assignments have one slot of {self.name}: {orders.run}, {running}"
        return orders

    def _train(self, job: str) -> bool:
        """One target at most."""
        if self._chance.random() < CRASHES:
            self._exit_code = -9
            return True
        trial = self._job(job)
        target = self._heard.patiently(lambda: trial.target(wire.TargetRequest(wait_s=0.0)))
        if target.wish == wire.TRAIN and target.length is not None:
            result = toy_result(self.orders[job].hparams, target.length, is_planned=False)
            self._heard.patiently(lambda: trial.report_result(result))
        self._exit_code = 0
        return target.wish == wire.STOP

    def _end(self, number: int, *, was_asked: bool = False) -> None:
        exit_code = 0 if was_asked else self._exit_code
        self._states[number] = wire.AssignmentState(
            number=number, state="ended", was_asked=was_asked, exit_code=exit_code
        )

    def _job(self, job: str) -> Coordinator:
        if job not in self._jobs:
            self._jobs[job] = Coordinator(self._url, self._token, job)
        return self._jobs[job]


class BusyNode(_Busy):
    def __init__(self, url: str, token: str, name: str, heard: Heard, seed: int) -> None:
        super().__init__(name, heard, seed)
        self._node = _Node(url, token, name, heard, self.chance)

    def turn(self) -> None:
        self._node.work()
        if self.chance.random() < NODE_RESTARTS:
            self._node.restart()

    def end(self) -> None:
        self._node.close()


class People(_Busy):
    """They keep the queue full until `is_enough`; then they wait for the rest."""

    def __init__(self, url: str, token: str, heard: Heard, seed: int) -> None:
        super().__init__("people", heard, seed)
        self._coordinator = Coordinator(url, token, "none")
        self._live: list[int] = []
        self.is_enough = threading.Event()

    def turn(self) -> None:
        views = [self.heard.patiently(partial(self._coordinator.experiment, number)) for number in self._live]
        live = [each for each in views if each.state not in wire.ENDED]
        self._live = [each.experiment for each in live]
        if self.is_enough.is_set():
            for each in live:
                self._act(each.experiment, "activate")
            self.heard.is_over.wait(0.05)
        elif len(live) < MOST_LIVE:
            self.create(self.chance.choice(list(SEARCHES)))
        else:
            self._disturb(self.chance.choice(live))

    def create(self, search: str) -> None:
        """Sometimes twice, as a person whose first answer was lost."""
        given = dict(SEARCHES[search])
        length = {"batches": given.pop("max_length")}
        request = spec(
            given.pop("searcher"), max_length=length, max_restarts=MANY_RESTARTS, num_micro_batches=2, **given
        )
        for _ in range(self.chance.choice([1, 2])):
            number = self.heard.patiently(lambda: self._coordinator.create_experiment(request)).experiment
            self.heard.note_experiment(request.request, number, search)
        self._live.append(number)

    def _disturb(self, one: wire.ExperimentView) -> None:
        if self.chance.random() < 0.05:
            self.heard.killed.add(one.experiment)
            self._act(one.experiment, "kill")
        elif self.chance.random() < 0.5:
            self._act(one.experiment, "activate" if one.state == "PAUSED" else "pause")
        else:
            change = wire.ExperimentChange(priority=self.chance.randint(1, 99))
            self.heard.patiently(lambda: self._coordinator.change(one.experiment, change))

    def _act(self, experiment: int, action: str) -> None:
        message = wire.ExperimentAction(action=action)
        with suppress(Refused):  # it is over meanwhile
            self.heard.patiently(lambda: self._coordinator.act(experiment, message))

    def end(self) -> None:
        self._coordinator.close()
