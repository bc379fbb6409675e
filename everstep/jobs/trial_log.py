"""The output of a trial, which is a job once it has had a slot."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice

from everstep.client.calls import Coordinator
from everstep.errors import UNKNOWN, Refused, UsageError
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.jobs.job_log import JobLog
from everstep.wire import LoggedLine, LogsRequest
from everstep.wire.experiments import ENDED, trial_job


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialLines:
    """Which lines: all conditions together; a field with its default asks for nothing."""

    head: int | None = None  # only the first N
    tail: int | None = None  # only the last N
    nodes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    streams: tuple[str, ...] = ()  # stdout, stderr
    level: int = 0  # at least
    since: float = -1.0
    until: float = -1.0
    text: str = ""

    @property
    def request(self) -> LogsRequest:
        """What the coordinator can choose from; the rest is chosen here."""
        return LogsRequest(
            node=self.nodes[0] if len(self.nodes) == 1 else "",
            rank=self.ranks[0] if len(self.ranks) == 1 else -1,
            level=self.level,
            since=self.since,
            until=self.until,
            text=self.text,
        )

    @property
    def is_chosen_here(self) -> bool:
        return len(self.nodes) > 1 or len(self.ranks) > 1 or bool(self.streams)

    def takes(self, line: LoggedLine) -> bool:
        is_of_node = not self.nodes or line.node in self.nodes
        is_of_rank = not self.ranks or line.rank in self.ranks
        return is_of_node and is_of_rank and (not self.streams or line.stream in self.streams)


ALL = TrialLines()


def trial_lines(
    link: CoordinatorLink, experiment: int, trial: int, wanted: TrialLines = ALL, *, follow: bool = False
) -> Iterator[LoggedLine]:
    """With `follow`, until the trial is over. None of a trial that has not had a slot."""
    if wanted.head is not None and (wanted.tail is not None or follow):
        hint = "give one of head, tail and follow; tail and follow go together"
        raise UsageError("the first lines and the last or new ones at once", hint=hint, code="log-head-and-tail")
    if not wanted.is_chosen_here:
        found = _lines(link, experiment, trial, wanted.request, tail=wanted.tail or 0, follow=follow)
        yield from islice(found, wanted.head)
        return
    if follow and wanted.tail is not None:
        hint = "give at most one node and one rank, and no stream, or leave out tail or follow"
        raise UsageError("the last lines of several and new ones at once", hint=hint, code="log-tail-of-several")
    chosen = (each for each in _lines(link, experiment, trial, wanted.request, follow=follow) if wanted.takes(each))
    yield from islice(chosen, wanted.head) if wanted.tail is None else deque(chosen, wanted.tail)


def _lines(
    link: CoordinatorLink, experiment: int, trial: int, wanted: LogsRequest, *, tail: int = 0, follow: bool = False
) -> Iterator[LoggedLine]:
    job = trial_job(experiment, trial)

    @contextmanager
    def live() -> Iterator[Coordinator | None]:
        with closing(link.of_job(job)) as coordinator:
            yield coordinator if _has_job(coordinator) else None

    def is_over() -> bool:
        return link(lambda coordinator: coordinator.trial(experiment, trial)).state in ENDED

    log = JobLog(job, live=live, left=lambda: None, is_over=is_over)
    try:
        yield from log.lines(wanted, tail=tail, follow=follow)
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
