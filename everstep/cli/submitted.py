"""Commands for submitted jobs: parse, call `jobs`, print. stdout is for machines, stderr for people."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console
from rich.table import Table

from everstep.cli.status import newest_line, render
from everstep.errors import EverstepError, UsageError
from everstep.job_file.tree import dump
from everstep.jobs import submitted
from everstep.jobs.submit import prepare, prepare_text, submit
from everstep.platforms.job_records import JobRecord


def say(line: str) -> None:
    typer.echo(f"everstep: {line}", err=True)


def leave(code: int) -> NoReturn:
    """All is said. A thread that still waits for the log of a node that is gone must not spoil the exit code, as it can
    when the interpreter ends around it."""
    if threading.active_count() == 1:
        raise typer.Exit(code)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # nobody reads it any more
        code = code or 1
    os._exit(code)


def submit_file(path: Path, changes: Sequence[str], *, platform: str | None, is_dry: bool, follows: bool) -> int:
    if str(path) == "-":
        prepared = prepare_text(sys.stdin.read(), changes, platform=platform, name="stdin")
    else:
        prepared = prepare(path, changes, platform=platform)
    for note in prepared.notes:
        say(note)
    if is_dry:
        text = prepared.request.text
        typer.echo(text, nl=not text.endswith("\n"))
        return 0
    record = submit(prepared, say)
    typer.echo(dump(submitted.ids_of(record)), nl=False)
    sys.stdout.flush()
    say(f"watch it with: everstep watch {record.id}")
    return watch(record.id) if follows else 0


def watch(wanted: str) -> int:
    record = submitted.find(wanted)
    try:
        _print_lines(record, follows=True)
    except KeyboardInterrupt:
        say(f"{record.id} goes on; `everstep cancel {record.id}` ends it")
        return 130
    status = submitted.end_of(record)
    say(f"{record.id} {status.state}: {status.reason}")
    return 0 if status.state == "succeeded" else 1


def print_logs(wanted: str, *, rank: int | None, worker: str | None, follows: bool) -> int:
    record = submitted.find(wanted)
    if rank is None and worker is None:
        _print_lines(record, follows=follows)
        return 0
    is_silent = True
    for text in submitted.worker_lines(record, rank=rank, worker=worker, follow=follows):
        is_silent = False
        typer.echo(text)
    if is_silent:
        who = worker or f"rank {rank}"
        say(f"{who} has written nothing, or there is none: `everstep status {record.id}` shows the workers")
    return 0


def _print_lines(record: JobRecord, *, follows: bool) -> None:
    for line in submitted.logs(record, follow=follows):
        typer.echo(f"{line.node} | {line.text}")


def list_jobs(*, is_json: bool) -> int:
    found = submitted.list_all()
    if is_json:
        rows = [
            {"id": each.id, "name": each.name, "platform": each.platform, **asdict(status)} for each, status in found
        ]
        typer.echo(json.dumps(rows, indent=2))
        return 0
    table = Table(title=None if found else "you have submitted no job on this machine")
    for column in ("id", "platform", "state", "age", "reason"):
        table.add_column(column, overflow="fold")
    for record, status in found:
        table.add_row(record.id, record.platform, status.state, _age(record.age_s), status.reason)
    Console().print(table)
    return 0


def print_submitted(wanted: str, *, is_json: bool) -> int:
    record = submitted.find(wanted)
    status = submitted.status(record)
    if is_json:
        told = {"id": record.id, "name": record.name, "platform": record.platform, **asdict(status)}
        typer.echo(json.dumps(told, indent=2))
        return 0
    console = Console()
    table = Table(
        title=f"{record.id} on {record.platform}: {status.state}", caption=status.reason, title_justify="left"
    )
    for column in ("node", "state", "where", "reason"):
        table.add_column(column)
    for node in status.nodes:
        table.add_row(node.name, node.state, node.where, node.reason)
    console.print(table)
    _print_training(record, console)
    return 0


def _print_training(record: JobRecord, console: Console) -> None:
    try:
        training = submitted.training(record)
    except EverstepError as error:
        say(f"its coordinator does not answer: {error.message}")
        return
    if training is not None:
        console.print(render(training.view))
        if line := newest_line(training.reports):
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def show_config(wanted: str | None, file: Path | None) -> int:
    if wanted is not None and file is None:
        record = submitted.find(wanted)
    elif wanted is None and file is not None:
        record = submitted.find_printed(file)
    else:
        raise UsageError("which job?", hint="give its id, or -f and what `everstep run -f` has printed")
    typer.echo(dump(submitted.config_of(record)), nl=False)
    return 0


def scale(wanted: str, num_nodes: int) -> int:
    record = submitted.find(wanted)
    submitted.scale(record, num_nodes, say)
    say(f"{record.id}: {num_nodes} nodes from now on")
    return 0


def cancel(wanted: str) -> int:
    record = submitted.find(wanted)
    status = submitted.cancel(record, say)
    say(f"{record.id} {status.state}: {status.reason}")
    return 0


def _age(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
