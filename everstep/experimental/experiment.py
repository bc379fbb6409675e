"""An experiment, with the methods of Determined's client."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from everstep import wire
from everstep.errors import UsageError
from everstep.experimental.checkpoint import CheckpointPath, reachable
from everstep.experimental.enums import CheckpointSortBy, ExperimentState, OrderBy, TrialSortBy
from everstep.experimental.ordering import ordered, ordered_checkpoints
from everstep.experimental.shown_tables import Facts, ShownList, ShownObject, time_of
from everstep.experimental.trial import ClientTrial, top_of
from everstep.jobs import experiments
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.wire.experiments import ENDED


class ClientExperiment(ShownObject):
    def __init__(self, link: CoordinatorLink, view: wire.ExperimentView) -> None:
        self._link, self.view = link, view
        self._config: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"Experiment(id={self.id}, name={self.name!r}, state={self.view.state})"

    def facts(self) -> Facts:
        best = self.view.best
        return [
            ("id", self.id),
            ("name", self.name),
            ("state", self.view.state),
            ("progress", f"{self.progress:.0%}"),
            ("trials", sum(self.view.num_trials.values())),
            (f"best {self.view.metric}" if best is not None else "best", "" if best is None else best.metric),
            ("searcher", self.view.searcher),
            ("labels", ", ".join(self.labels)),
            ("created", time_of(self.view.created_at)),
        ]

    @property
    def id(self) -> int:
        return self.view.experiment

    @property
    def name(self) -> str:
        return self.view.name

    @property
    def description(self) -> str:
        return self.view.description

    @property
    def notes(self) -> str:
        return self.view.notes

    @property
    def labels(self) -> list[str]:
        return list(self.view.labels)

    @property
    def archived(self) -> bool:
        return self.view.is_archived

    @property
    def progress(self) -> float:
        return self.view.progress

    @property
    def state(self) -> ExperimentState:
        """As of the last `reload`."""
        return ExperimentState(self.view.state)

    @property
    def config(self) -> dict[str, Any]:
        if self._config is None:
            self._config = self._link(lambda coordinator: coordinator.experiment_config(self.id)).config
        return self._config

    def reload(self) -> None:
        self.view = self._link(lambda coordinator: coordinator.experiment(self.id))

    # --- its life ---

    def activate(self) -> None:
        self._act("activate")

    def pause(self) -> None:
        self._act("pause")

    def cancel(self) -> None:
        self._act("cancel")

    def kill(self) -> None:
        self._act("kill")

    def archive(self) -> None:
        self._act("archive")

    def unarchive(self) -> None:
        self._act("unarchive")

    def delete(self) -> None:
        self._act("delete")

    def _act(self, action: str) -> None:
        self.view = experiments.act(self._link, self.id, action)

    def wait(self, interval: float = 5.0) -> ExperimentState:
        """Wait until it is over."""
        self.view = experiments.wait(self._link, self.id, interval)
        return self.state

    def await_first_trial(self, interval: float = 0.1) -> ClientTrial:
        found = experiments.first_trial(self._link, self.id, interval)
        if found is None:
            raise UsageError(
                f"experiment {self.id} ended without a trial", hint="its .view.reason says why", code="no-trial"
            )
        return ClientTrial(self._link, found)

    # --- what it has found ---

    def iter_trials(
        self,
        sort_by: TrialSortBy = TrialSortBy.ID,
        order_by: OrderBy = OrderBy.ASCENDING,
        limit: int | None = None,
    ) -> Iterator[ClientTrial]:
        """`limit`: at most this many."""
        return iter(self.list_trials(sort_by, order_by)[:limit])

    def list_trials(
        self, sort_by: TrialSortBy = TrialSortBy.ID, order_by: OrderBy = OrderBy.ASCENDING
    ) -> ShownList[ClientTrial]:
        found = experiments.all_trials(self._link, self.id)
        return ShownList(ClientTrial(self._link, each) for each in ordered(found, sort_by, order_by))

    get_trials = list_trials

    def list_checkpoints(
        self,
        sort_by: str | CheckpointSortBy | None = None,
        order_by: OrderBy | None = None,
        max_results: int | None = None,
        *,
        smaller_is_better: bool | None = None,
    ) -> ShownList[CheckpointPath]:
        """Those that still exist and can be read from this machine, best first. `sort_by`: a metric other than the
        searcher's, or a field; `order_by`: its direction."""
        found = experiments.all_checkpoints(self._link, self.id)
        chosen = ordered_checkpoints(found, self.view, sort_by, order_by, smaller_is_better=smaller_is_better)
        return reachable(chosen, max_results)

    def top_n_checkpoints(
        self, limit: int, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> ShownList[CheckpointPath]:
        """The best ones."""
        return self.list_checkpoints(sort_by, max_results=limit, smaller_is_better=smaller_is_better)

    def top_checkpoint(self, sort_by: str | None = None, smaller_is_better: bool | None = None) -> CheckpointPath:
        """The best one; `sort_by`: a metric other than the searcher's."""
        found = experiments.all_checkpoints(self._link, self.id)
        return top_of(found, self.view, sort_by, smaller_is_better, f"experiment {self.id}")

    def download_code(self, output_dir: str | os.PathLike[str] | None = None) -> str:
        """Write its code to a folder that is empty or does not exist; default: `ID_model_def` here."""
        folder = Path(output_dir if output_dir is not None else f"{self.id}_model_def")
        return str(experiments.download_code(self._link, self.view, folder))

    # --- what people write on it ---

    def set_name(self, name: str) -> None:
        self._change(wire.ExperimentChange(name=name))

    def set_description(self, description: str) -> None:
        self._change(wire.ExperimentChange(description=description))

    def set_notes(self, notes: str) -> None:
        self._change(wire.ExperimentChange(notes=notes))

    def set_labels(self, labels: Sequence[str]) -> None:
        self._change(wire.ExperimentChange(labels=list(labels)))

    def add_label(self, label: str) -> None:
        self.view = experiments.relabel(self._link, self.id, label, is_wanted=True)

    def remove_label(self, label: str) -> None:
        self.view = experiments.relabel(self._link, self.id, label, is_wanted=False)

    def _change(self, change: wire.ExperimentChange) -> None:
        self.view = experiments.change(self._link, self.id, change)

    @property
    def is_over(self) -> bool:
        return self.view.state in ENDED
