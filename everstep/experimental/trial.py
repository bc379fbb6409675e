"""A trial of an experiment, with the methods of Determined's client."""

from __future__ import annotations

import enum
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.experimental.checkpoint import CheckpointPath, get_checkpoint
from everstep.jobs import experiments
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.jobs.trial_log import trial_lines
from everstep.record.series_pages import all_series
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
        """Until it is over."""
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
        with closing(self._link.of_job(self.view.job)) as coordinator:
            for name in _groups(coordinator, group):
                by_step = _points(coordinator, name)
                for step in sorted(by_step):
                    yield TrialMetrics(trial_id=self.id, group=name, steps_completed=step, metrics=by_step[step])

    def list_checkpoints(self) -> list[CheckpointPath]:
        """Those that still exist, newest first."""
        found = [each for each in self._checkpoints() if each.state == COMPLETED]
        return [get_checkpoint(each.uuid) for each in sorted(found, key=lambda each: -each.step)]

    def top_checkpoint(self, sort_by: str | None = None, smaller_is_better: bool | None = None) -> CheckpointPath:
        """The best one; `sort_by`: by another metric than the searcher's."""
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

    is_smaller = view.smaller_is_better if smaller_is_better is None else smaller_is_better
    best = experiments.best_checkpoints(found, number=1, metric=sort_by or "", smaller_is_better=is_smaller)
    if not best:
        raise NoCheckpoint(
            f"{whose} has no checkpoint", hint="wait for the first one, or see save_trial_best", code="no-checkpoint"
        )
    return get_checkpoint(best[0].uuid)


def _groups(coordinator: Coordinator, group: str) -> list[str]:
    names = [each.name.partition("/")[0] for each in all_series(coordinator, is_own=True) if "/" in each.name]
    return [name for name in dict.fromkeys(names) if group in ("", name)]


def _points(coordinator: Coordinator, group: str) -> dict[int, dict[str, float]]:
    by_step: dict[int, dict[str, float]] = defaultdict(dict)
    for series in all_series(coordinator, is_own=True):
        above, _, name = series.name.partition("/")
        start = series.first_step
        while above == group and start <= series.last_step:
            window = coordinator.series_window(series.series, start=start, is_full=True)
            for step, value in zip(window.first_steps, window.firsts, strict=True):
                by_step[step][name] = float(value)
            start = window.stop
    return by_step
