"""A job file as one trial in a pool: `everstep run -f` with a coordinator that has a pool.

Its workers are slots: the pool gives the job as many as help, from `nodes`' minimum to its maximum. Nothing is printed
here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from everstep.errors import UsageError
from everstep.job_file.load import load, load_file
from everstep.job_file.order import num_workers_of
from everstep.job_file.schema import Job
from everstep.jobs import new_experiments
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.jobs.new_experiments import PreparedExperiment
from everstep.jobs.submitted import refuse_search
from everstep.wire.pool import DEFAULT_POOL

METRIC = "loss"  # of a job that names none; without reports, the trial ends with its script
_AS_SLOTS = ("nodes", "workers_per_node")


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolJob:
    """A job file that was read."""

    job: Job
    notes: tuple[str, ...]

    @property
    def names_platform(self) -> bool:
        return "platform" in self.job.model_fields_set

    @property
    def pool(self) -> str:
        return self.job.resources.pool or DEFAULT_POOL


def read(path: Path, text: str | None = None, changes: Sequence[str] = ()) -> PoolJob:
    """`text`: instead of the file's."""
    loaded = load_file(path, changes) if text is None else load(text, changes, name=str(path))
    return PoolJob(job=loaded.job, notes=loaded.notes)


def find_pool(link: CoordinatorLink, name: str) -> str:
    """Why the coordinator cannot run a job in this pool; empty: it can."""
    there = [each.pool for each in link(lambda coordinator: coordinator.pools()).pools if each.agents]
    if name in there:
        return ""
    others = f"those with nodes: {', '.join(there)}" if there else "no pool has any"
    return f"pool {name} has no nodes; {others}"


def prepare(given: PoolJob) -> PreparedExperiment:
    """An experiment with one trial."""
    refuse_search(given.job)
    content = content_of(given.job)
    prepared = new_experiments.prepare(None, Path(given.job.workdir).expanduser(), content=content)
    return replace(prepared, notes=(*given.notes, *prepared.notes))


def content_of(job: Job) -> dict[str, Any]:
    """The job as the file of an experiment."""
    least, most = slots_of(job)
    content = {name: value for name, value in job.dump().items() if name not in _AS_SLOTS}
    # A dump masks the values of secrets.
    secrets = {name: secret.held if secret.is_value else str(secret) for name, secret in job.secrets.items()}
    resources = {**content.get("resources", {}), "slots_per_trial": most, "min_slots": least}
    resources.pop("gpu", None)  # the number of workers
    searcher = {"name": "single", "metric": METRIC, **(content.get("searcher") or {})}
    return {**content, **({"secrets": secrets} if secrets else {}), "resources": resources, "searcher": searcher}


def slots_of(job: Job) -> tuple[int, int]:
    """The fewest and the most: of a job's workers, each has one."""
    asked, workers = job.resources, num_workers_of(job)
    if isinstance(workers, int):
        least, most = job.nodes.min * workers, asked.slots_per_trial or job.nodes.max * workers
    elif asked.slots_per_trial:
        least, most = 1, asked.slots_per_trial
    else:
        raise UsageError(
            f"workers_per_node: {workers}: a pool has slots, and no nodes on which workers could be counted",
            hint="resources: {slots_per_trial: 8} is the most slots that the job uses",
            code="pool-job-workers-not-counted",
        )
    return asked.min_slots or min(least, most), most
