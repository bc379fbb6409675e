"""A job's settings for the coordinator, the launcher and the workers. Pure."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from everstep.job_file.schema import Checkpoint, Job
from everstep.wire import Policy


def num_workers_of(job: Job) -> int | str:
    """Of each node: a number, or auto, gpu, cpu for the node to find out."""
    return job.workers_per_node or job.resources.gpu or 1


def policy_settings(job: Job, num_workers: int) -> dict[str, Any]:
    """Of the coordinator's policy, for this number of workers on each node; the rest keeps its defaults."""
    names = {field.name for field in fields(Policy)}
    given = {**job.elastic.model_dump(), **job.health.model_dump(), **job.shards.model_dump()}
    return {
        "start_nodes": job.nodes.min,
        "min_nodes": job.nodes.min,
        "max_nodes": job.nodes.max,
        "start_workers": job.nodes.min * num_workers,
        "max_restarts": job.restarts,
        **{name: value for name, value in given.items() if name in names and value is not None},
    }


def experiment_of(job: Job) -> dict[str, Any]:
    """The job file for `everstep.get_cluster_info()` and the Trainer, by Determined's names."""
    workers = num_workers_of(job)
    told = {
        "name": job.title,
        "entrypoint": list(job.entrypoint),
        "hyperparameters": job.hyperparameters,
        "data": job.data,
        "labels": list(job.labels),
        "searcher": None if job.searcher is None else job.searcher.model_dump(mode="json", exclude_none=True),
        "reproducibility": {"experiment_seed": job.seed},
        "checkpoint_storage": _storage(job.checkpoint),
        "resources": {"slots_per_trial": job.nodes.max * workers} if isinstance(workers, int) else None,
        "max_restarts": job.restarts,
    }
    return {key: value for key, value in told.items() if value not in (None, {}, [])}


def _storage(checkpoint: Checkpoint) -> dict[str, Any]:
    kinds = {"s3": "s3", "gs": "gcs", "az": "azure"}
    scheme, _, rest = checkpoint.uri.rpartition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme in kinds:
        place = {"type": kinds[scheme], "bucket": bucket, "prefix": prefix}
    else:
        place = {"uri" if scheme else "host_path": checkpoint.uri}
    kept = {"save_trial_latest": checkpoint.keep_latest, "save_trial_best": checkpoint.keep_best}
    return {key: value for key, value in {**place, **kept}.items() if value not in (None, "")}
