"""Commands for submitted jobs: parse, call `jobs`, print. Results go to stdout, notes for people to stderr."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from everstep.cli.options import command, say
from everstep.cli.printable import printable
from everstep.cli.status import print_training
from everstep.cli.tables import print_json, table
from everstep.errors import EverstepError, UsageError
from everstep.jobs import submitted
from everstep.platforms.base import JobRecord, JobStatus
from everstep.settings import setting


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    job: str = setting(..., "Its ID here, its ID on the platform, or its name", is_argument=True, metavar="ID")


@dataclass(frozen=True, kw_only=True)
class JobListOptions:
    json: bool = setting(False, "Print JSON instead of a table")


@dataclass(frozen=True, kw_only=True)
class ShowConfigOptions:
    job: str | None = setting(None, "A submitted job", is_argument=True, metavar="[ID]")
    file: Path | None = setting(None, "File with the output of `everstep run -f`", also=("-f",), metavar="FILE")


@dataclass(frozen=True, kw_only=True)
class ScaleOptions(JobOptions):
    nodes: int = setting(..., "New number of nodes", metavar="N", least=1)


def leave(code: int) -> int:
    """Exit at once if a thread still waits for the log of a node that is gone: at the interpreter's end it could change
    the exit code."""
    if threading.active_count() == 1:
        return code
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # the reader has closed the pipe
        code = code or 1
    os._exit(code)


@command(JobOptions, no_args_is_help=True)
def watch(options: JobOptions) -> int:
    """Follow a submitted job until it ends. Exit code 0 if it succeeds. Ctrl-C stops watching, not the job."""
    return watch_to_end(submitted.find(options.job))


def watch_to_end(record: JobRecord) -> int:
    try:
        print_platform_lines(record, follows=True)
    except KeyboardInterrupt:
        say(f"{record.id} continues; `everstep cancel {record.id}` ends it")
        return leave(130)
    status = submitted.end_of(record)
    say(f"{record.id} {status.state}: {status.reason}")
    return leave(0 if status.state == "succeeded" else 1)


def print_platform_lines(record: JobRecord, *, follows: bool) -> None:
    for line in submitted.logs(record, follow=follows):
        click.echo(printable(f"{line.node} | {line.text}"))


@command(JobListOptions, name="list")
def list_jobs(options: JobListOptions) -> None:
    """List the jobs that you have submitted, newest first."""
    found = submitted.list_all()
    if options.json:
        print_json([_facts(record, status) for record, status in found])
        return
    rows = [(each.id, each.platform, status.state, _age(each.age_s), status.reason) for each, status in found]
    title = None if found else "you have not submitted a job on this machine"
    Console().print(table(title, ("id", "platform", "state", "age", "reason"), rows, folds=True))


def _facts(record: JobRecord, status: JobStatus) -> dict[str, Any]:
    return {"id": record.id, "name": record.name, "platform": record.platform, **asdict(status)}


def print_submitted(wanted: str, *, is_json: bool) -> None:
    """`everstep status ID`."""
    record = submitted.find(wanted)
    status = submitted.status(record)
    if is_json:
        print_json(_facts(record, status))
        return
    title = f"{record.id} on {record.platform}: {status.state}"
    rows = [(node.name, node.state, node.where, node.reason) for node in status.nodes]
    Console().print(table(title, ("node", "state", "where", "reason"), rows, caption=status.reason))
    try:
        training = submitted.training(record)
    except EverstepError as error:
        say(f"its coordinator does not answer: {error.message}")
        return
    if training is not None:
        print_training(training.view, training.series)


@command(ShowConfigOptions, name="show-config", no_args_is_help=True)
def show_config(options: ShowConfigOptions) -> None:
    """Show a submitted job as a job file, with the location of its parts.

    Select it by ID, or by the output of `run` (-f)."""
    if options.job is not None and options.file is None:
        record = submitted.find(options.job)
    elif options.job is None and options.file is not None:
        record = submitted.find_printed(options.file)
    else:
        hint = "give its ID, or the output of `everstep run -f` with -f"
        raise UsageError("which job?", hint=hint, code="submitted-job-not-named")
    from everstep.job_file.tree import dump

    click.echo(dump(submitted.config_of(record)), nl=False)


@command(ScaleOptions, no_args_is_help=True)
def scale(options: ScaleOptions) -> None:
    """Change the number of nodes of a running job."""
    record = submitted.find(options.job)
    submitted.scale(record, options.nodes, say)
    say(f"{record.id}: {options.nodes} nodes from now on")


@command(JobOptions, no_args_is_help=True)
def cancel(options: JobOptions) -> None:
    """End a submitted job and clean up after it."""
    record = submitted.find(options.job)
    status = submitted.cancel(record, say)
    say(f"{record.id} {status.state}: {status.reason}")


def _age(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


COMMANDS = {
    "list": list_jobs,
    "watch": watch,
    "show-config": show_config,
    "scale": scale,
    "cancel": cancel,
}
