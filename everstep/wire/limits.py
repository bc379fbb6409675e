"""How many of each there may be: far more than needed, few enough that a runaway loop does not fill the memory."""

from __future__ import annotations

from everstep.errors import Refused

MAX_JOBS = 10_000  # that are not over
MAX_WORKERS = 1_000_000  # of a job, with all that it ever had
MAX_NODES = 10_000  # of a job, with all that it ever had
MAX_DATASETS = 10_000  # of a job
MAX_REPORTS = 1_000_000  # of a job, with more than numbers
MAX_SERIES = 10_000  # of a job
MAX_POINTS = 1_000_000_000  # of a job, in all its series
MAX_SYSTEM_SERIES = 100_000  # about the nodes and workers of a job, besides its own
SYSTEM_POINTS = 5_000_000  # of a job, before samples of its nodes and workers get rarer: some 200 MB


def check_jobs(num_open: int) -> None:
    """Before one more is created."""
    if num_open >= MAX_JOBS:
        raise Refused(f"{num_open} jobs are open, the limit is {MAX_JOBS}: stop some of them", code="too-many-jobs")


def check_workers(num_workers: int) -> None:
    if num_workers > MAX_WORKERS:
        raise Refused(f"the job has had {num_workers - 1} workers, the limit is {MAX_WORKERS}", code="too-many-workers")


def check_nodes(num_nodes: int, num_workers: int) -> None:
    """With one that comes, and its workers."""
    if num_nodes > MAX_NODES:
        raise Refused(f"the job has had {num_nodes - 1} nodes, the limit is {MAX_NODES}", code="too-many-nodes")
    check_workers(num_workers)


def check_datasets(num_datasets: int) -> None:
    """With one that is new."""
    if num_datasets > MAX_DATASETS:
        raise Refused(f"the job has {num_datasets - 1} datasets, the limit is {MAX_DATASETS}", code="too-many-datasets")


def check_reports(num_reports: int) -> None:
    """With those that are new."""
    if num_reports > MAX_REPORTS:
        raise Refused(
            f"with these, the job has reported {num_reports} times more than numbers, the limit is {MAX_REPORTS}",
            code="too-many-reports",
        )


def check_metrics(num_series: int, num_points: int, *, is_system: bool = False) -> None:
    """With those that are new. What agents sample does not count against what the job reports."""
    max_series, whose = (MAX_SYSTEM_SERIES, "system ") if is_system else (MAX_SERIES, "")
    if num_series > max_series:
        raise Refused(
            f"this would bring the job to {num_series} series of {whose}metrics; the limit is {max_series}: "
            "use fewer names",
            code="too-many-series",
        )
    if num_points > MAX_POINTS:
        raise Refused(
            f"this would bring the job to {num_points} points of {whose}metrics; the limit is {MAX_POINTS}: "
            "report less often",
            code="too-many-points",
        )


def sample_interval_s(wanted_s: float, num_points: int) -> float:
    """The time between two samples of a job that has this many: their number grows with the logarithm of time."""
    return wanted_s * 2.0 ** min(num_points // SYSTEM_POINTS, 20)
