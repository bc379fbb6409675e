"""`everstep.experimental.client`, with Determined's names: experiments, trials and checkpoints from Python.

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
from everstep.experimental.checkpoint import CheckpointPath, CheckpointState, DownloadMode, get_checkpoint
from everstep.experimental.experiment import ClientExperiment, ExperimentState
from everstep.experimental.session import CURRENT
from everstep.experimental.trial import ClientTrial, TrialMetrics, TrialState
from everstep.jobs import experiments

log = logging.getLogger("everstep")

# Determined's names
Checkpoint = CheckpointPath
Experiment = ClientExperiment
Trial = ClientTrial

__all__ = [
    "Checkpoint",
    "CheckpointPath",
    "CheckpointState",
    "DownloadMode",
    "Experiment",
    "ExperimentState",
    "Trial",
    "TrialMetrics",
    "TrialState",
    "create_experiment",
    "get_checkpoint",
    "get_experiment",
    "get_trial",
    "iter_trials_metrics",
    "list_experiments",
    "login",
    "logout",
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


def create_experiment(
    config: str | os.PathLike[str] | Mapping[str, Any],
    model_dir: str | os.PathLike[str] | None = None,
    includes: Iterable[str | os.PathLike[str]] = (),
    *,
    changes: Sequence[str] = (),
    is_paused: bool = False,
) -> Experiment:
    """`config`: a file, or its content. `changes`: as those of `e create --config`."""
    from everstep.jobs import new_experiments  # late: it takes as long to import as all else here

    is_content = isinstance(config, Mapping)
    prepared = new_experiments.prepare(
        None if is_content else Path(config),  # type: ignore[arg-type]
        None if model_dir is None else Path(model_dir),
        content=config if is_content else None,  # type: ignore[arg-type]
        changes=changes,
        includes=[Path(each) for each in includes],
        is_paused=is_paused,
    )
    for note in prepared.notes:
        log.warning("%s", note)
    return Experiment(CURRENT.link, new_experiments.create(CURRENT.link, prepared))


def get_experiment(experiment_id: int) -> Experiment:
    return Experiment(CURRENT.link, CURRENT.link(lambda coordinator: coordinator.experiment(experiment_id)))


def list_experiments(
    *,
    experiment_ids: Sequence[int] | None = None,
    labels: Sequence[str] | None = None,
    states: Sequence[ExperimentState] | None = None,
    name: str | None = None,
    archived: bool = False,
) -> list[Experiment]:
    """Newest first. `labels`: only those with all of these; `archived`: also archived ones."""
    wanted = {each.value for each in states} if states else None
    return [
        Experiment(CURRENT.link, each)
        for each in experiments.all_experiments(CURRENT.link, is_archived=archived)
        if (experiment_ids is None or each.experiment in experiment_ids)
        and (wanted is None or each.state in wanted)
        and (name is None or each.name == name)
        and set(labels or ()) <= set(each.labels)
    ]


def get_trial(trial_id: int) -> Trial:
    return Trial(CURRENT.link, CURRENT.link(lambda coordinator: coordinator.find_trial(trial_id)))


def iter_trials_metrics(trial_ids: Sequence[int], group: str = "") -> Iterable[TrialMetrics]:
    for each in trial_ids:
        yield from get_trial(each).iter_metrics(group)
