"""A trial of an experiment, with the methods of Determined's client."""

from __future__ import annotations

import enum
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from everstep import wire
from everstep.experimental.checkpoint import CheckpointPath, get_checkpoint, reachable
from everstep.jobs import experiments
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.jobs.trial_log import trial_lines
from everstep.jobs.trial_metrics import trial_metrics
from everstep.wire.experiments import COMPLETED, QUEUED, RUNNING, WAITING


class TrialState(enum.Enum):
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    WAITING = "WAITING"  # for the search to decide
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    CANCELED = "CANCELED"
    ERROR = "ERROR"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialMetrics:
    """What a trial reported at one step."""

    trial_id: int
    group: str  # training, validation, …
    steps_completed: int
    metrics: dict[str, float]

    @property
    def total_batches(self) -> int:
        return self.steps_completed


class ClientTrial:
    def __init__(self, link: CoordinatorLink, view: wire.TrialView) -> None:
        self._link, self.view = link, view

    def __repr__(self) -> str:
        return f"Trial(id={self.id}, experiment={self.experiment_id}, number={self.number}, state={self.view.state})"

    @property
    def id(self) -> int:
        return self.view.trial_id

    @property
    def experiment_id(self) -> int:
        return self.view.experiment

    @property
    def number(self) -> int:
        """In its experiment, from 1."""
        return self.view.trial

    @property
    def hparams(self) -> dict[str, Any]:
        return self.view.hparams

    @property
    def state(self) -> TrialState:
        """As of the last `reload`."""
        return TrialState(self.view.state)

    @property
    def summary_metrics(self) -> dict[str, Any]:
        """The searcher's metric."""
        return {"latest": self.view.latest, "best": self.view.best, "best_length": self.view.best_length}

    def reload(self) -> None:
        self.view = self._link(lambda coordinator: coordinator.trial(self.experiment_id, self.number))

    def kill(self) -> None:
        """End it at once; the search continues without it."""
        self.view = self._link(lambda coordinator: coordinator.kill_trial(self.experiment_id, self.number))

    def wait(self, interval: float = 1.0) -> TrialState:
        """Wait until it is over."""
        while True:
            self.reload()
            if self._is_over():
                return self.state
            threading.Event().wait(interval)

    def _is_over(self) -> bool:
        return self.view.state not in (QUEUED, RUNNING, WAITING, "PAUSED")

    def iter_logs(self, follow: bool = False, *, tail: int | None = None) -> Iterator[str]:
        """Its lines; with `follow`, until it is over."""
        for line in trial_lines(self._link, self.experiment_id, self.number, tail=tail or 0, follow=follow):
            yield line.text

    logs = iter_logs

    def iter_metrics(self, group: str = "") -> Iterator[TrialMetrics]:
        """Step by step; `group`: only training, or only validation."""
        for each in trial_metrics(self._link, self.view.job, group):
            yield TrialMetrics(
                trial_id=self.id, group=each.group, steps_completed=each.steps_completed, metrics=each.metrics
            )

    def list_checkpoints(self) -> list[CheckpointPath]:
        """Those that still exist and can be read from this machine, newest first."""
        found = [each for each in self._checkpoints() if each.state == COMPLETED]
        return reachable(sorted(found, key=lambda each: -each.step))

    def top_checkpoint(self, sort_by: str | None = None, smaller_is_better: bool | None = None) -> CheckpointPath:
        """The best one; `sort_by`: a metric other than the searcher's."""
        view = self._link(lambda coordinator: coordinator.experiment(self.experiment_id))
        return top_of(self._checkpoints(), view, sort_by, smaller_is_better, f"trial {self.id}")

    def _checkpoints(self) -> list[wire.SavedCheckpoint]:
        found = experiments.all_checkpoints(self._link, self.experiment_id)
        return [each for each in found if each.trial == self.number]


def top_of(
    found: list[wire.SavedCheckpoint],
    view: wire.ExperimentView,
    sort_by: str | None,
    smaller_is_better: bool | None,
    whose: str,
) -> CheckpointPath:
    from everstep.errors import NoCheckpoint

    best = experiments.best_checkpoints(found, view, number=1, metric=sort_by, smaller_is_better=smaller_is_better)
    if not best:
        raise NoCheckpoint(
            f"{whose} has no checkpoint",
            hint="wait until one is saved; save_trial_best sets how many are kept",
            code="no-checkpoint",
        )
    return get_checkpoint(best[0].uuid)
