"""A trial of an experiment, with the methods of Determined's client."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from everstep import wire
from everstep.errors import NoCheckpoint
from everstep.experimental.checkpoint import CheckpointPath, get_checkpoint, reachable
from everstep.experimental.enums import CheckpointSortBy, LogLevel, OrderBy, TrialState
from everstep.experimental.ordering import ordered_checkpoints
from everstep.experimental.shown_tables import Facts, ShownList, ShownObject, named
from everstep.jobs import experiments
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.jobs.trial_log import TrialLines, trial_lines
from everstep.jobs.trial_metrics import metric_summaries, trial_metrics
from everstep.wire.experiments import QUEUED, RUNNING, WAITING

if TYPE_CHECKING:
    from everstep.experimental.experiment import ClientExperiment


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


class ClientTrial(ShownObject):
    def __init__(self, link: CoordinatorLink, view: wire.TrialView) -> None:
        self._link, self.view = link, view

    def __repr__(self) -> str:
        return f"Trial(id={self.id}, experiment={self.experiment_id}, number={self.number}, state={self.view.state})"

    def facts(self) -> Facts:
        return [
            ("id", self.id),
            ("experiment", self.experiment_id),
            ("trial", self.number),
            ("state", self.view.state),
            ("length", self.view.length),
            ("latest", self.view.latest),
            ("best", self.view.best),
            ("restarts", self.view.num_restarts),
            ("hyperparameters", named(self.hparams)),
        ]

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
        """The searcher's metric, and for each group, such as training or validation, the last, least and greatest
        value of each metric, and how many there are."""
        own = {"latest": self.view.latest, "best": self.view.best, "best_length": self.view.best_length}
        return {**metric_summaries(self._link, self.view.job), **own}

    def get_experiment(self) -> ClientExperiment:
        from everstep.experimental.experiment import ClientExperiment  # late: it imports this file

        return ClientExperiment(self._link, self._link(lambda coordinator: coordinator.experiment(self.experiment_id)))

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

    def iter_logs(
        self,
        follow: bool = False,
        *,
        head: int | None = None,
        tail: int | None = None,
        agent_ids: Sequence[str] | None = None,
        rank_ids: Sequence[int] | None = None,
        stdtypes: Sequence[str] | None = None,
        min_level: LogLevel | None = None,
        timestamp_before: float | datetime | None = None,
        timestamp_after: float | datetime | None = None,
        contains: str | None = None,
    ) -> Iterator[str]:
        """Its lines; with `follow`, until it is over. All conditions together; `agent_ids`: names of nodes;
        `stdtypes`: stdout, stderr; times: seconds since the epoch, or dates."""
        wanted = TrialLines(
            head=head,
            tail=tail,
            nodes=tuple(agent_ids or ()),
            ranks=tuple(rank_ids or ()),
            streams=tuple(stdtypes or ()),
            level=0 if min_level is None else min_level.value,
            since=_seconds(timestamp_after),
            until=_seconds(timestamp_before),
            text=contains or "",
        )
        for line in trial_lines(self._link, self.experiment_id, self.number, wanted, follow=follow):
            yield line.text

    logs = iter_logs

    def iter_metrics(self, group: str = "") -> Iterator[TrialMetrics]:
        """Step by step; `group`: only training, or only validation."""
        for each in trial_metrics(self._link, self.view.job, group):
            yield TrialMetrics(
                trial_id=self.id, group=each.group, steps_completed=each.steps_completed, metrics=each.metrics
            )

    def list_checkpoints(
        self,
        sort_by: str | CheckpointSortBy | None = None,
        order_by: OrderBy | None = None,
        max_results: int | None = None,
    ) -> ShownList[CheckpointPath]:
        """Those that still exist and can be read from this machine, newest first; `sort_by`: a metric, then best first,
        or a field."""
        if sort_by is None:
            sort_by, order_by = CheckpointSortBy.BATCH_NUMBER, order_by or OrderBy.DESCENDING
        view = self._link(lambda coordinator: coordinator.experiment(self.experiment_id))
        return reachable(ordered_checkpoints(self._checkpoints(), view, sort_by, order_by), max_results)

    def top_checkpoint(self, sort_by: str | None = None, smaller_is_better: bool | None = None) -> CheckpointPath:
        """The best one; `sort_by`: a metric other than the searcher's."""
        view = self._link(lambda coordinator: coordinator.experiment(self.experiment_id))
        return top_of(self._checkpoints(), view, sort_by, smaller_is_better, f"trial {self.id}")

    def _checkpoints(self) -> list[wire.SavedCheckpoint]:
        found = experiments.all_checkpoints(self._link, self.experiment_id)
        return [each for each in found if each.trial == self.number]


def _seconds(at: float | datetime | None) -> float:
    return -1.0 if at is None else at.timestamp() if isinstance(at, datetime) else float(at)


def top_of(
    found: list[wire.SavedCheckpoint],
    view: wire.ExperimentView,
    sort_by: str | None,
    smaller_is_better: bool | None,
    whose: str,
) -> CheckpointPath:
    best = experiments.best_checkpoints(found, view, number=1, metric=sort_by, smaller_is_better=smaller_is_better)
    if not best:
        raise NoCheckpoint(
            f"{whose} has no checkpoint",
            hint="wait until one is saved; save_trial_best sets how many are kept",
            code="no-checkpoint",
        )
    return get_checkpoint(best[0].uuid)
