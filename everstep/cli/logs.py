"""`everstep logs`: parse, call `jobs.job_log`, print. Lines go to stdout, what was dropped to stderr."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import click

from everstep.cli.options import command, say
from everstep.cli.printable import printable
from everstep.cli.submitted import leave, print_platform_lines
from everstep.client.calls import Coordinator
from everstep.errors import UsageError
from everstep.job_file.quantity import parse_seconds
from everstep.jobs import submitted
from everstep.jobs.find_record import is_record, record_of
from everstep.jobs.job_folder import answers, coordinator_of_folder, is_folder_over
from everstep.jobs.job_log import JobLog
from everstep.jobs.options import CoordinatorOptions
from everstep.jobs.tokens import find_token
from everstep.launcher import run_record
from everstep.launcher.run_record import RunRecord
from everstep.platforms.base import JobRecord
from everstep.record.about import LOGS
from everstep.record.log_levels import LEVELS
from everstep.settings import setting
from everstep.wire import MAX_CONTEXT, LoggedLine, LogsRequest


@dataclass(frozen=True, kw_only=True)
class LogsOptions(CoordinatorOptions):
    job: str = setting(
        ..., "A run, a submitted job (its ID here or on the platform, or its name)", is_argument=True, metavar="ID"
    )
    follow: bool = setting(False, "Also print new lines, until the job ends")
    tail: int | None = setting(None, "Only the last N lines; with --follow, also new ones", metavar="N", least=1)
    rank: int | None = setting(
        None, "Only lines of the worker that had this rank when it printed them", metavar="RANK", least=0
    )
    worker: str | None = setting(None, "Only the lines of this worker, such as w1", metavar="NAME")
    node: str | None = setting(None, "Only lines from this node", metavar="NAME")
    level: str | None = setting(
        None, "Only lines of at least this level: debug, info, warning, error, critical", metavar="LEVEL"
    )
    since: str | None = setting(
        None, "Only lines from this time on: 10m (ago), 14:30, 2026-01-31T14:30", metavar="TIME"
    )
    until: str | None = setting(None, "Only lines before this time", metavar="TIME")
    grep: str | None = setting(None, "Only lines with this text", metavar="TEXT")
    regex: str | None = setting(None, "Only lines that match this regular expression (Python's)", metavar="REGEX")
    context: int = setting(
        0, "Also print this many lines of the same worker before and after each match", metavar="N", least=0
    )
    timestamps: bool = setting(False, "Print the time of each line")
    raw: bool = setting(
        False, "Print the platform's own log instead, with the output of setup lines and of Everstep itself"
    )
    log_dir: Path = setting(Path("runs"), "Folder with the logs of runs", metavar="DIR", variables=("PET_LOG_DIR",))


@command(LogsOptions, no_args_is_help=True)
def logs(options: LogsOptions) -> int:
    """Print, search and follow the output of a job: of its workers, and of the agents that run them.

    The output comes from the job's coordinator or, once that is gone, from the job's record. ID is a run in the log
    folder, a submitted job, or the folder of a job or a record. For a job of a coordinator started with
    `everstep serve`, add --coordinator URL."""
    wanted, record = _wanted(options), None
    if options.coordinator is not None:
        log = _served_log(options.coordinator, options.job, options.token_file)
    elif run := next(run_record.newest_first(options.log_dir, options.job), None):
        log = _run_log(*run, options.token_file)
    elif is_record(folder := Path(options.job)):
        log = _folder_log(folder, options.token_file)
    else:
        record = submitted.find(options.job)
        log = _submitted_log(record)
    if record is not None and (options.raw or not log.has_any()):
        return _print_platform(record, options, wanted)
    is_one = options.worker is not None or options.rank is not None
    is_silent = True
    for line in log.lines(wanted, tail=options.tail or 0, follow=options.follow):
        is_silent = False
        click.echo(shown_line(line, is_one=is_one, has_time=options.timestamps))
    for note in log.notes:
        say(note)
    if is_silent:
        say(_nothing(options))
    return leave(0)


def _wanted(options: LogsOptions) -> LogsRequest:
    if options.rank is not None and options.worker is not None:
        raise UsageError("--rank and --worker at once", hint="give one of them", code="rank-and-worker")
    if options.level is not None and options.level.lower() not in LEVELS:
        hint = f"use one of {', '.join(LEVELS)}"
        raise UsageError(f"--level {options.level}: unknown level", hint=hint, code="log-level-unknown")
    if options.context > MAX_CONTEXT:
        problem = f"--context {options.context} is too large"
        raise UsageError(problem, hint=f"use at most {MAX_CONTEXT}", code="log-context-too-large")
    now = time.time()
    return LogsRequest(
        worker=options.worker or "",
        rank=-1 if options.rank is None else options.rank,
        node=options.node or "",
        level=LEVELS[options.level.lower()] if options.level else 0,
        since=-1 if options.since is None else parse_time(options.since, now, is_past=True),
        until=-1 if options.until is None else parse_time(options.until, now),
        text=options.grep or "",
        regex=options.regex or "",
        context=options.context,
    )


def parse_time(text: str, now: float, *, is_past: bool = False) -> float:
    """A time of day, a date, or how long ago, as seconds since the epoch. `is_past`: a time of day that is still to
    come today was yesterday."""
    today = datetime.fromtimestamp(now)
    for form in ("%H:%M", "%H:%M:%S"):
        try:
            given = datetime.strptime(text, form)
            then = today.replace(hour=given.hour, minute=given.minute, second=given.second, microsecond=0)
            return (then - timedelta(days=1) if is_past and then > today else then).timestamp()
        except ValueError:
            pass
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        pass
    try:
        return now - parse_seconds(text)
    except UsageError:
        hint = "10m (ago), 14:30, 2026-01-31, or 2026-01-31T14:30"
        raise UsageError(f"not a time: {text!r}", hint=hint, code="log-time-invalid") from None


def shown_line(line: LoggedLine, *, is_one: bool, has_time: bool = False) -> str:
    """`is_one`: all lines are one worker's, so its node need not be named."""
    who = "everstep:" if "/" in line.worker else f"[{line.worker}]"
    at = f"{datetime.fromtimestamp(line.time):%Y-%m-%dT%H:%M:%S} " if has_time else ""
    where = "" if is_one else f"{line.node} | "
    return printable(f"{at}{where}{who} {line.text}")


def _nothing(options: LogsOptions) -> str:
    if options.grep or options.regex or options.level or options.since or options.until or options.node:
        return "no line matches"
    name = options.worker or (f"rank {options.rank}" if options.rank is not None else options.job)
    return f"no output from {name}, or it does not exist; `everstep status {options.job}` shows the workers"


def _print_platform(record: JobRecord, options: LogsOptions, wanted: LogsRequest) -> int:
    """By the platform's own means: no coordinator has the log any more, or not yet."""
    if options.timestamps or options.tail is not None or wanted != LogsRequest(worker=wanted.worker, rank=wanted.rank):
        raise UsageError(
            f"{record.id}: neither its coordinator nor its record can be reached from here",
            hint="the platform's own log can be filtered only by --worker or --rank; try again once the job is running",
            code="job-log-unreachable",
        )
    if options.rank is None and options.worker is None:
        print_platform_lines(record, follows=options.follow)
        return leave(0)
    is_silent = True
    for text in submitted.worker_lines(record, rank=options.rank, worker=options.worker, follow=options.follow):
        is_silent = False
        click.echo(printable(text))
    if is_silent:
        say(_nothing(options))
    return leave(0)


def _folder_log(folder: Path, token_file: Path | None) -> JobLog:
    """Of a job that may still run, or of a copy."""

    @contextmanager
    def live() -> Iterator[Coordinator | None]:
        with coordinator_of_folder(folder, token_file) as coordinator:
            yield coordinator if coordinator is not None and answers(coordinator) else None

    from everstep.coordinator.finished_record import open_record

    with live() as coordinator, open_record(folder) as record:
        job, unended = record.job, "" if coordinator is not None else record.lacks_end()
    if unended:
        say(f"the log of job {job}, {unended}")
    return JobLog(job, live=live, left=lambda: folder, is_over=lambda: is_folder_over(folder, token_file))


def _served_log(url: str, job: str, token_file: Path | None) -> JobLog:
    @contextmanager
    def live() -> Iterator[Coordinator]:
        with closing(Coordinator(url, find_token(token_file), job)) as coordinator:
            yield coordinator

    return JobLog(job, live=live, left=lambda: None)


def _run_log(directory: Path, record: RunRecord, token_file: Path | None) -> JobLog:
    @contextmanager
    def live() -> Iterator[Coordinator | None]:
        is_ended = is_over()
        if is_ended and left() is not None:
            yield None
            return
        with coordinator_of_folder(directory, token_file) as coordinator:
            is_there = coordinator is not None and (not is_ended or answers(coordinator))
            yield coordinator if is_there else None

    def left() -> Path | None:
        return directory if (directory / LOGS).exists() else None

    def is_over() -> bool:
        found = run_record.read(directory)
        return found is None or found.shown_state != run_record.RUNNING

    return JobLog(record.job, live=live, left=left, is_over=is_over)


def _submitted_log(record: JobRecord) -> JobLog:
    return JobLog(
        record.id,
        live=lambda: submitted.coordinator_of(record),
        left=lambda: record_of(record, [LOGS]),
        is_over=lambda: submitted.status(record).is_over,
    )


COMMANDS = {"logs": logs}
