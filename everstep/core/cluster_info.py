"""`everstep.get_cluster_info()`: the job that a script runs in; None outside a job.

The job file's content is in a JSON file that EVERSTEP_EXPERIMENT names. Runs without torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn

from everstep import env
from everstep.core import job_checkpoints
from everstep.errors import UsageError
from everstep.record.trial import current_trial

_ELSEWHERE = {  # Determined's attributes that do not exist here, and what to use instead
    "agent_id": "`.container_rank` is the node's number",
    "cluster_id": "`.task_id` is the job",
    "container_addrs": "workers come and go: use context.distributed",
    "container_slot_counts": "workers come and go: use context.distributed",
    "gpu_uuids": "use torch.cuda",
    "master_url": "the coordinator's URL is in EVERSTEP_COORDINATOR",
    "session_token": "tokens are not shown to scripts",
    "slot_ids": "use context.device, or torch.cuda",
    "user_data": "the job file's content is in everstep.core.cluster_info.experiment_config()",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialInfo:
    """One run with one set of hyperparameters: a trial of an experiment, or the job itself, by its name."""

    trial_id: int | str
    experiment_id: int | str
    trial_seed: int
    hparams: dict[str, Any]


class ClusterInfo:
    """The job of this worker. Every attribute is read when it is used."""

    task_type = "TRIAL"

    @property
    def task_id(self) -> str:
        return env.job()

    @property
    def allocation_id(self) -> str:
        return env.job()

    @property
    def container_rank(self) -> int:
        """The node's number at the start."""
        return env.node_rank()

    @property
    def latest_checkpoint(self) -> str | None:
        """The uuid of the newest whole checkpoint of this run; before there is one, of the one that its trial begins
        with. `fit` finds them without this."""
        trial = current_trial()
        return job_checkpoints.latest() or (trial.warm_start or None if trial is not None else None)

    @property
    def trial(self) -> TrialInfo:
        config, trial = experiment_config(), current_trial()
        if trial is not None:
            return TrialInfo(
                trial_id=trial.trial_id,
                experiment_id=trial.experiment,
                trial_seed=trial.seed,
                hparams=_section(config, "hyperparameters"),
            )
        return TrialInfo(
            trial_id=env.job(),
            experiment_id=env.job(),
            trial_seed=_seed(config),
            hparams=_section(config, "hyperparameters"),
        )

    def __getattr__(self, name: str) -> NoReturn:
        hint = f"\n  HINT: {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
        raise AttributeError(f"the job's information has no {name!r}{hint}")

    def __repr__(self) -> str:
        return f"<ClusterInfo of job {self.task_id}>"


def get_cluster_info() -> ClusterInfo | None:
    """The job that this process is a worker of; None under plain `python` and torchrun."""
    return None if env.coordinator_url() is None else ClusterInfo()


def get_hparams() -> dict[str, Any]:
    """The hyperparameters of this trial, or of the job file; empty without one."""
    return dict(_section(experiment_config(), "hyperparameters"))


def experiment_config() -> dict[str, Any]:
    """The job file's content; empty without a job file."""
    path = env.path(env.EXPERIMENT)
    if path is None:
        return {}
    hint = f"{env.EXPERIMENT} names a file with the job file's content as JSON, on each node"
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:  # ValueError: not JSON, or not UTF-8
        raise UsageError(
            f"{env.EXPERIMENT}={path} cannot be read: {error}", hint=hint, code="experiment-unreadable"
        ) from error
    if not isinstance(content, dict):
        raise UsageError(
            f"{env.EXPERIMENT}={path} holds {type(content).__name__}, not an object",
            hint=hint,
            code="experiment-not-an-object",
        )
    return content


def _section(config: dict[str, Any], name: str) -> dict[str, Any]:
    value = config.get(name) or {}
    if not isinstance(value, dict):
        raise UsageError(
            f"{name} in the job file is {value!r}, not a mapping",
            hint=f"{name}: {{key: value}}",
            code="experiment-section-not-a-mapping",
        )
    return value


def _seed(config: dict[str, Any]) -> int:
    seed = _section(config, "reproducibility").get("experiment_seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise UsageError(
            f"reproducibility.experiment_seed in the job file is {seed!r}, not a whole number",
            hint="experiment_seed: 7",
            code="experiment-seed-not-a-number",
        )
    return seed
