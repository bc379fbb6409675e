"""Submitted jobs, for programs: find one, read its status and logs, scale it, cancel it. Nothing is printed here.

record = submit(prepare(Path("job.yaml")))   # everstep.jobs.submit
status(record).state                         # "running"
cancel(record)"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import yaml

from everstep.client.calls import Coordinator
from everstep.errors import EverstepError, UsageError
from everstep.jobs.log_filter import by_rank, by_worker
from everstep.platforms import job_records
from everstep.platforms.base import JobStatus, LogLine, Say, State
from everstep.platforms.job_records import JobRecord
from everstep.platforms.registry import platform_of
from everstep.waiting import wait_until
from everstep.wire import JobView, MetricReport

_LATE_STATUS_S = 5.0  # a platform may report "running" for a moment after the last line
_NEWEST_REPORTS = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingStatus:
    """The view of a job's coordinator."""

    view: JobView
    reports: tuple[MetricReport, ...]  # the newest


def _ignore(_line: str) -> None:
    """Notes for people."""


find = job_records.find  # by any of its ids, or its name


def find_printed(file: Path) -> JobRecord:
    """The job whose output of `everstep run -f` is in `file`."""
    try:
        printed = yaml.safe_load(file.read_text())
        return find(str(printed["everstep"]["id"] if "everstep" in printed else printed["jobId"]))
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise UsageError(
            f"{file} is not the output of `everstep run -f`: {error}",
            hint="save it with … | tee info.yaml",
            code="run-output-unreadable",
        ) from None


def list_all() -> list[tuple[JobRecord, JobStatus]]:
    """Newest first. A platform that is unreachable does not hide the other jobs."""
    return [(record, _status_if_known(record)) for record in job_records.load_all()]


def status(record: JobRecord) -> JobStatus:
    """A final state is stored: the platform may forget it."""
    if record.end is not None:
        state, reason = record.end
        return JobStatus(state=cast(State, state), reason=reason)
    status = platform_of(record.platform).status(record)
    if status.is_over:
        job_records.save(replace(record, end=(status.state, status.reason)))
    return status


def end_of(record: JobRecord) -> JobStatus:
    """After its last line: how it ended, if the platform knows it already."""
    wait_until(lambda: status(record).is_over, _LATE_STATUS_S, "the platform to report the end", pause_s=0.2)
    return status(record)


def logs(record: JobRecord, *, follow: bool = False) -> Iterator[LogLine]:
    return platform_of(record.platform).logs(record, follow=follow)


def worker_lines(record: JobRecord, *, rank: int | None, worker: str | None, follow: bool = False) -> Iterator[str]:
    """The lines of one worker, by its name or by its rank at the time."""
    if rank is not None and worker is not None:
        raise UsageError("--rank and --worker at once", hint="give one of them", code="rank-and-worker")
    texts = (line.text for line in logs(record, follow=follow))
    if worker is not None:
        return iter(by_worker(texts, worker))
    return iter(by_rank(texts, rank, _ranks(record), follow))


def training(record: JobRecord) -> TrainingStatus | None:
    """None: its coordinator cannot be reached from here."""
    with _coordinator(record) as coordinator:
        if coordinator is None:
            return None
        reports = coordinator.metrics(since=-_NEWEST_REPORTS, limit=_NEWEST_REPORTS).reports
        return TrainingStatus(view=coordinator.view(), reports=tuple(reports))


def scale(record: JobRecord, num_nodes: int, say: Say = _ignore) -> None:
    """`say` gets notes for people."""
    if not record.min_nodes <= num_nodes <= record.max_nodes:
        raise UsageError(
            f"{num_nodes} nodes: the job takes {record.min_nodes} to {record.max_nodes}",
            hint="`nodes: MIN:MAX` in the job file sets the range",
            code="nodes-out-of-range",
        )
    if (found := status(record)).is_over:
        raise UsageError(f"{record.id} is over: {found.state}, {found.reason}", code="submitted-job-over")
    platform_of(record.platform).scale(record, num_nodes, say)


def cancel(record: JobRecord, say: Say = _ignore) -> JobStatus:
    """Returns when no part of it runs any more."""
    platform_of(record.platform).cancel(record, say)
    return status(record)


def ids_of(record: JobRecord) -> dict[str, Any]:
    """The output of `run`: ADS's names first."""
    main, *others = record.runs or ((record.name, record.job_id),)
    return {
        "jobId": record.job_id,
        "workDir": record.work_dir,
        "mainJobRunId": {main[0]: main[1]},
        "otherJobRunIds": [{name: native} for name, native in others],
        "everstep": {"id": record.id, "platform": record.platform, "folder": record.folder},
    }


def config_of(record: JobRecord) -> dict[str, Any]:
    """Its ids, where its coordinator is, and its job file."""
    return {**ids_of(record), "runtime": _runtime_of(record), "job": dict(record.job)}


def _runtime_of(record: JobRecord) -> dict[str, Any]:
    """The main node and its address, by ADS's names."""
    main = (record.runs or ((record.name, record.job_id),))[0][0]
    try:
        with platform_of(record.platform).coordinator(record) as found:
            url = urlsplit(found[0]) if found is not None else None
    except EverstepError as error:
        return {"main": main, "coordinator": f"not found: {error.message}"}
    if url is None:
        return {"main": main, "coordinator": "not running, or not reachable from here"}
    return {"main": main, "coordinator": url.geturl(), "MASTER_ADDR": url.hostname, "MASTER_PORT": url.port}


def _status_if_known(record: JobRecord) -> JobStatus:
    try:
        return status(record)
    except (EverstepError, ImportError, OSError) as error:
        return JobStatus(state="unknown", reason=str(error).splitlines()[0])


def _ranks(record: JobRecord) -> Mapping[str, int]:
    """By worker, as long as the coordinator answers."""
    try:
        with _coordinator(record) as coordinator:
            workers = coordinator.view().workers if coordinator is not None else []
            return {each.worker: each.rank for each in workers if each.rank >= 0}
    except EverstepError:
        return {}


@contextmanager
def _coordinator(record: JobRecord) -> Iterator[Coordinator | None]:
    with platform_of(record.platform).coordinator(record) as found:
        if found is None:
            yield None
        else:
            with Coordinator(*found, record.id) as coordinator:
                yield coordinator
