"""The output of a trial, which is a job once it has had a slot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from everstep.client.calls import Coordinator
from everstep.errors import UNKNOWN, Refused, UsageError
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.jobs.job_log import JobLog
from everstep.wire import LoggedLine, LogsRequest
from everstep.wire.experiments import ENDED, trial_job


def trial_lines(
    link: CoordinatorLink, experiment: int, trial: int, *, tail: int = 0, follow: bool = False
) -> Iterator[LoggedLine]:
    """With `follow`, until the trial is over. None of a trial that has not had a slot."""
    job = trial_job(experiment, trial)

    @contextmanager
    def live() -> Iterator[Coordinator | None]:
        with closing(link.of_job(job)) as coordinator:
            yield coordinator if _has_job(coordinator) else None

    def is_over() -> bool:
        return link(lambda coordinator: coordinator.trial(experiment, trial)).state in ENDED

    log = JobLog(job, live=live, left=lambda: None, is_over=is_over)
    try:
        yield from log.lines(LogsRequest(), tail=tail, follow=follow)
    except UsageError as error:
        if error.code != "job-log-missing":
            raise


def _has_job(coordinator: Coordinator) -> bool:
    try:
        coordinator.view(is_brief=True)
    except Refused as refused:
        if refused.status != UNKNOWN:
            raise
        return False
    return True
