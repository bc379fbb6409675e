"""Experiments without pools: specifications, and trials that are nothing but their calls."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.errors import CoordinatorUnreachable
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
                if each.state not in (*wire.ENDED, "WAITING"):
                    on_trial(each.trial)
                    self.train(each.trial)
            return self.view().state in wire.ENDED

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
