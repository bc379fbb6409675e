"""The order of a submitted job: one JSON text, the same for its coordinator and every node.

Holds no secrets. The platform passes the coordinator's address and the node's rank separately. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from everstep.env import BACKEND
from everstep.errors import UsageError
from everstep.wire import Policy, policy_problems

if TYPE_CHECKING:  # a node that only reads its order needs no job file
    from everstep.job_file.fields import Section
    from everstep.job_file.schema import Checkpoint, Job, Volume


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeOrder:
    job: str  # its id
    name: str
    script: str
    args: tuple[str, ...] = ()
    is_module: bool = False
    is_program: bool = False
    workers: int | str = 1  # of each node; auto, gpu, cpu: what the node has
    gpus: int = 0  # promised to each node
    min_nodes: int = 1
    max_nodes: int = 1
    policy: Mapping[str, float | int] = field(default_factory=dict)  # non-default values
    experiment: Mapping[str, Any] = field(default_factory=dict)  # for scripts that ask the job
    env: Mapping[str, str] = field(default_factory=dict)
    setup: tuple[str, ...] = ()
    code: str = ""  # SHA-256 of the tarball that workers start in; "": in `workdir`, which is there already
    code_from: str = ""  # folder, of any kind that fsspec knows, that holds the tarball; "": the coordinator has it
    workdir: str = ""
    grace_s: float = 60.0  # time that a leaving node has to save and leave
    time_limit_s: float | None = None  # of the whole job
    wants_check: bool = False
    record_to: str = ""  # where the coordinator copies the job's record when the job is over
    secrets: tuple[str, ...] = ()  # the variables that hold them on each node

    def to_json(self) -> str:
        """Short: it travels in environment variables."""
        told = {name: value for name, value in asdict(self).items() if value != _DEFAULTS.get(name)}
        return json.dumps(told, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> NodeOrder:
        try:
            told = json.loads(text)
            known = {each.name for each in fields(cls)}
            if unknown := sorted(told.keys() - known):
                raise UsageError(
                    f"the order has {unknown[0]!r}, which this version does not know",
                    hint="use the same version of Everstep on all nodes",
                    code="order-key-unknown",
                )
            tuples = {name: tuple(told[name]) for name in ("args", "setup", "secrets") if name in told}
            return cls(**{**told, **tuples})
        except (ValueError, TypeError, AttributeError) as error:
            raise UsageError(
                f"not a job's order: {error}", hint="it is written by `everstep run -f`", code="order-unreadable"
            ) from None


_DEFAULTS: dict[str, Any] = {"args": (), "setup": (), "secrets": (), "policy": {}, "experiment": {}, "env": {}} | {
    each.name: each.default for each in fields(NodeOrder) if isinstance(each.default, str | int | float | bool | None)
}


def policy_of(order: NodeOrder) -> Policy:
    policy = Policy(**order.policy)  # type: ignore[arg-type]
    for problem in policy_problems(policy):
        raise UsageError(problem, hint="see elastic and health in docs/job_file.md", code="policy-invalid")
    return policy


def _grace_s(job: Job) -> float:
    """At most half of the job's time: nodes that start to leave before they have started would never train."""
    return job.checkpoint.grace if job.time_limit is None else min(job.checkpoint.grace, job.time_limit / 2)


def order_of(job: Job, job_id: str, *, code: str = "", code_from: str = "", workdir: str = "") -> NodeOrder:
    entry, workers = job.entry, num_workers_of(job)
    counted = workers if isinstance(workers, int) else 1
    return NodeOrder(
        job=job_id,
        name=job.title,
        script=entry.script,
        args=entry.args,
        is_module=entry.is_module,
        is_program=entry.is_program,
        workers=workers,
        gpus=job.resources.gpu,
        min_nodes=job.nodes.min,
        max_nodes=job.nodes.max,
        policy=policy_settings(job, counted),
        experiment=experiment_of(job),
        env=_variables(job),
        setup=job.setup,
        code=code,
        code_from=code_from,
        workdir=workdir,
        grace_s=_grace_s(job),
        time_limit_s=job.time_limit,
        wants_check=job.health.check,
        record_to=record_place(job.checkpoint.uri),
        secrets=tuple(job.secrets),
    )


def record_place(checkpoints: str) -> str:
    """Beside the checkpoints. A relative path is in the folder of the script, which the coordinator does not know."""
    return checkpoints if "://" in checkpoints or checkpoints.startswith("/") else ""


def checkpoint_volume(job: Job) -> Volume | None:
    """The volume that checkpoints are on: in containers, a path elsewhere ends with its container."""
    for volume in job.volumes:
        if f"{job.checkpoint.uri}/".startswith(f"{volume.target.rstrip('/')}/") and not volume.readonly:
            return volume
    return None


def in_containers(order: NodeOrder, volume: Volume | None) -> NodeOrder:
    """The record goes only to a place that outlives the coordinator's container."""
    return order if volume is not None or "://" in order.record_to else replace(order, record_to="")


def _variables(job: Job) -> dict[str, str]:
    """Environment variables of the workers."""
    return {**job.env, **({BACKEND: job.backend} if job.backend else {})}


def num_workers_of(job: Job) -> int | str:
    """Of each node: a number, or auto, gpu, cpu for the node to find out."""
    return job.workers_per_node or job.resources.gpu or job.resources.slots_per_trial or 1


def policy_settings(job: Job, num_workers: int) -> dict[str, Any]:
    """Of the coordinator's policy, for this number of workers on each node; the rest keeps its defaults."""
    return {
        "start_nodes": job.nodes.min,
        "min_nodes": job.nodes.min,
        "max_nodes": job.nodes.max,
        "start_workers": job.nodes.min * num_workers,
        "max_restarts": job.restarts,
        **given_settings(job.elastic, job.health, job.shards, job.logs, job.metrics),
    }


def given_settings(*sections: Section) -> dict[str, Any]:
    """Of the coordinator's policy: those that the file gives in these sections."""
    names = {field.name for field in fields(Policy)}
    given = (item for each in sections for item in each.model_dump(exclude_none=True).items())
    return {name: value for name, value in given if name in names}


def experiment_of(job: Job) -> dict[str, Any]:
    """The job file for `everstep.get_cluster_info()` and the Trainer, by Determined's names."""
    workers = num_workers_of(job)
    slots = job.resources.slots_per_trial or (job.nodes.max * workers if isinstance(workers, int) else None)
    told = {
        "name": job.title,
        "description": job.description,
        "entrypoint": list(job.entrypoint),
        "hyperparameters": job.hyperparameters,
        "data": job.data,
        "labels": list(job.labels),
        "searcher": None if job.searcher is None else job.searcher.model_dump(mode="json", exclude_none=True),
        "reproducibility": {"experiment_seed": job.seed},
        "checkpoint_storage": _storage(job.checkpoint),
        "resources": {"slots_per_trial": slots} if slots is not None else None,
        "max_restarts": job.restarts,
        "records_per_epoch": job.records_per_epoch,
        "min_validation_period": job.min_validation_period,
        "min_checkpoint_period": job.min_checkpoint_period,
    }
    return {key: value for key, value in told.items() if value not in (None, {}, [], "")}


def _storage(checkpoint: Checkpoint) -> dict[str, Any]:
    kinds = {"s3": "s3", "gs": "gcs", "az": "azure"}
    scheme, _, rest = checkpoint.uri.rpartition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme in kinds:
        place = {"type": kinds[scheme], "bucket": bucket, "prefix": prefix}
    else:
        place = {"uri" if scheme else "host_path": checkpoint.uri}
    kept = {
        "save_experiment_best": checkpoint.keep_experiment_best,
        "save_trial_latest": checkpoint.keep_latest,
        "save_trial_best": checkpoint.keep_best,
    }
    return {key: value for key, value in {**place, **kept}.items() if value not in (None, "")}


_STORAGE_NAMES = ("AWS_", "AZURE_", "FSSPEC_", "GOOGLE_", "OCIFS_", "OCI_")


def is_for_storage(name: str) -> bool:
    """Whether a variable may tell a driver how to reach the checkpoints: the coordinator gets these, and no others."""
    return name.startswith(_STORAGE_NAMES)
