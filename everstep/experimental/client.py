"""`everstep.experimental.client`, with Determined's names: experiments, trials, checkpoints and models from Python.

    experiment = client.create_experiment("exp.yaml", ".")
    experiment.wait()
    path = experiment.top_checkpoint().download()

Without `login`, EVERSTEP_COORDINATOR or DET_MASTER, experiments run on this machine. Runs without torch."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import env
from everstep.experimental.checkpoint import CheckpointPath, CheckpointTraining, get_checkpoint
from everstep.experimental.enums import (
    CheckpointSortBy,
    CheckpointState,
    DownloadMode,
    ExperimentSortBy,
    ExperimentState,
    LogLevel,
    ModelSortBy,
    OrderBy,
    TrialSortBy,
    TrialState,
)
from everstep.experimental.experiment import ClientExperiment
from everstep.experimental.model import ClientModel, ClientModelVersion
from everstep.experimental.ordering import ordered
from everstep.experimental.session import CURRENT, ClientUser
from everstep.experimental.shown_tables import ShownList
from everstep.experimental.trial import ClientTrial, TrialMetrics
from everstep.jobs import experiments, models

log = logging.getLogger("everstep")

# Determined's names
Checkpoint = CheckpointPath
Experiment = ClientExperiment
Trial = ClientTrial
Model = ClientModel
ModelVersion = ClientModelVersion
ModelOrderBy = OrderBy
User = ClientUser

__all__ = [
    "Checkpoint",
    "CheckpointPath",
    "CheckpointSortBy",
    "CheckpointState",
    "CheckpointTraining",
    "DownloadMode",
    "Experiment",
    "ExperimentSortBy",
    "ExperimentState",
    "LogLevel",
    "Model",
    "ModelOrderBy",
    "ModelSortBy",
    "ModelVersion",
    "OrderBy",
    "Trial",
    "TrialMetrics",
    "TrialSortBy",
    "TrialState",
    "User",
    "create_experiment",
    "create_model",
    "get_checkpoint",
    "get_experiment",
    "get_model",
    "get_model_by_id",
    "get_model_labels",
    "get_trial",
    "iter_trials_metrics",
    "list_experiments",
    "list_models",
    "login",
    "logout",
    "whoami",
]


def login(
    master: str | None = None,
    user: str | None = None,
    password: str | None = None,
    cert_path: str | os.PathLike[str] | None = None,
    *,
    token_file: str | os.PathLike[str] | None = None,
) -> None:
    """Use the coordinator at this URL. Nothing is sent: each call carries the token of `token_file`, EVERSTEP_TOKEN or
    EVERSTEP_TOKEN_FILE. `user` and `password` are accepted and have no effect."""
    env.trust(None if cert_path is None else Path(cert_path))
    CURRENT.login(master, None if token_file is None else Path(token_file))


def logout() -> None:
    """Forget what `login` was given."""
    CURRENT.logout()


def whoami() -> User:
    """Whose token this is, once the coordinator has accepted it."""
    return CURRENT.user()


def create_experiment(
    config: str | os.PathLike[str] | Mapping[str, Any],
    model_dir: str | os.PathLike[str] | None = None,
    includes: Iterable[str | os.PathLike[str]] = (),
    *,
    changes: Sequence[str] = (),
    is_paused: bool = False,
    template: str | None = None,
) -> Experiment:
    """`config`: a file, or its content. `changes`: as those of `e create --config`. `template`: the name of one at the
    coordinator, whose keys count where the file has none."""
    from everstep.jobs import new_experiments  # late: it takes as long to import as all else here

    is_content = isinstance(config, Mapping)
    below = "" if template is None else models.template_text(CURRENT.link, template)
    prepared = new_experiments.prepare(
        None if is_content else Path(config),  # type: ignore[arg-type]
        None if model_dir is None else Path(model_dir),
        content=config if is_content else None,  # type: ignore[arg-type]
        changes=changes,
        includes=[Path(each) for each in includes],
        is_paused=is_paused,
        below=below,
    )
    for note in prepared.notes:
        log.warning("%s", note)
    return Experiment(CURRENT.link, new_experiments.create(CURRENT.link, prepared))


def get_experiment(experiment_id: int) -> Experiment:
    return Experiment(CURRENT.link, CURRENT.link(lambda coordinator: coordinator.experiment(experiment_id)))


def list_experiments(
    sort_by: ExperimentSortBy = ExperimentSortBy.ID,
    order_by: OrderBy = OrderBy.DESCENDING,
    *,
    experiment_ids: Sequence[int] | None = None,
    labels: Sequence[str] | None = None,
    users: Sequence[str] | None = None,
    states: Sequence[ExperimentState] | None = None,
    name: str | None = None,
    archived: bool = False,
) -> ShownList[Experiment]:
    """Newest first. `labels`: only those with all of these; `users`: only those of these people; `archived`: also
    archived ones."""
    wanted = {each.value for each in states} if states else None
    found = [
        each
        for each in experiments.all_experiments(CURRENT.link, is_archived=archived)
        if (experiment_ids is None or each.experiment in experiment_ids)
        and (wanted is None or each.state in wanted)
        and (users is None or each.owner in users)
        and (name is None or each.name == name)
        and set(labels or ()) <= set(each.labels)
    ]
    return ShownList(Experiment(CURRENT.link, each) for each in ordered(found, sort_by, order_by))


def get_trial(trial_id: int) -> Trial:
    return Trial(CURRENT.link, CURRENT.link(lambda coordinator: coordinator.find_trial(trial_id)))


def iter_trials_metrics(trial_ids: Sequence[int], group: str = "") -> Iterable[TrialMetrics]:
    for each in trial_ids:
        yield from get_trial(each).iter_metrics(group)


def create_model(
    name: str,
    description: str | None = "",
    metadata: Mapping[str, Any] | None = None,
    labels: Sequence[str] | None = None,
) -> Model:
    made = models.create_model(
        CURRENT.link, name, description=description or "", labels=labels or (), metadata=metadata
    )
    return Model(CURRENT.link, made)


def get_model(identifier: str | int) -> Model:
    """By its name or ID."""
    return Model(CURRENT.link, CURRENT.link(lambda coordinator: coordinator.model(str(identifier))))


def get_model_by_id(model_id: int) -> Model:
    return get_model(int(model_id))


def list_models(
    sort_by: ModelSortBy = ModelSortBy.NAME,
    order_by: OrderBy = OrderBy.ASCENDING,
    *,
    name: str = "",
    description: str = "",
    labels: Sequence[str] | None = None,
    archived: bool = False,
) -> ShownList[Model]:
    """`name`, `description`: only those that contain this text; `labels`: only those with all of these; `archived`:
    also archived ones."""
    found = models.all_models(
        CURRENT.link, sort=sort_by.value, is_descending=order_by.is_descending, is_archived=archived
    )
    return ShownList(
        Model(CURRENT.link, each)
        for each in found
        if name.lower() in each.name.lower()
        and description.lower() in each.description.lower()
        and set(labels or ()) <= set(each.labels)
    )


def get_model_labels() -> list[str]:
    """Of all models, the most frequent first."""
    return CURRENT.link(lambda coordinator: coordinator.model_labels()).labels
