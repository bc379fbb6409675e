"""`everstep e list, config, list-trials, list-checkpoints`: tables, JSON and CSV."""

from __future__ import annotations

import csv
import sys
from collections.abc import Container, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import click
from rich.console import Console

from everstep import wire
from everstep.cli.experiment_link import ExperimentOptions, ExperimentsOptions, link_of
from everstep.cli.experiment_table import same_hparams, shown_hparams, shown_value
from everstep.cli.options import command
from everstep.cli.tables import fitting, print_json, table
from everstep.jobs import experiments
from everstep.settings import setting

_WIDEST = 1000  # of a table that is not on a terminal
_LIST = ("id", "name", "state", "progress", "trials", "best", "searcher", "created", "labels")
TRIALS = ("trial", "id", "state", "length", "latest", "best", "at", "restarts", "hyperparameters", "reason")
CHECKPOINTS = ("trial", "batches", "uuid", "metric", "state", "created", "where")
_FOLDED = ("name", "best", "labels", "hyperparameters", "reason", "where")
# On a narrow terminal, the first one first.
_LIST_GIVE_WAY = ("labels", "created", "searcher", "progress")
TRIALS_GIVE_WAY = ("id", "restarts", "at", "latest", "length")
_CHECKPOINTS_GIVE_WAY = ("created", "state", "batches")


@dataclass(frozen=True, kw_only=True)
class ListExperimentsOptions(ExperimentsOptions):
    all: bool = setting(False, "Also show archived experiments and verifications", also=("-a",))
    csv: bool = setting(False, "Print CSV instead of a table")
    json: bool = setting(False, "Print JSON instead of a table")


@dataclass(frozen=True, kw_only=True)
class RowsOptions(ExperimentOptions):
    csv: bool = setting(False, "Print CSV instead of a table")
    json: bool = setting(False, "Print JSON instead of a table")


@dataclass(frozen=True, kw_only=True)
class ListCheckpointsOptions(RowsOptions):
    best: int | None = setting(None, "Only the best N by the searcher's metric", metavar="N", least=1)


@dataclass(frozen=True, kw_only=True)
class ConfigOptions(ExperimentOptions):
    json: bool = setting(False, "Print JSON instead of the original file")


@command(ListExperimentsOptions, name="list")
def list_experiments(options: ListExperimentsOptions) -> None:
    """List experiments, newest first."""
    with link_of(options) as link:
        found = experiments.all_experiments(link, is_archived=options.all)
    if options.json:
        print_json([asdict(each) for each in found])
        return
    print_rows(
        _LIST, [_experiment_row(each) for each in found], _LIST_GIVE_WAY, is_csv=options.csv, nothing="no experiments"
    )


def _experiment_row(view: wire.ExperimentView) -> tuple[object, ...]:
    best = "" if view.best is None else f"{view.metric} {shown_value(view.best.metric)} (trial {view.best.trial})"
    state = f"{view.state} (archived)" if view.is_archived else view.state
    trials = sum(view.num_trials.values())
    created = shown_time(view.created_at)
    labels = ", ".join(view.labels)
    return view.experiment, view.name, state, f"{view.progress:.0%}", trials, best, view.searcher, created, labels


@command(ConfigOptions, name="config", no_args_is_help=True)
def config(options: ConfigOptions) -> None:
    """Print the file that an experiment was created with."""
    with link_of(options) as link:
        found = link(lambda coordinator: coordinator.experiment_config(options.experiment))
    if options.json:
        print_json(found.config)
    elif found.written:
        click.echo(found.written, nl=not found.written.endswith("\n"))
    else:
        from everstep.job_file.tree import dump

        click.echo(dump(found.config), nl=False)


@command(RowsOptions, name="list-trials", no_args_is_help=True)
def list_trials(options: RowsOptions) -> None:
    """List the trials of an experiment."""
    with link_of(options) as link:
        found = experiments.all_trials(link, options.experiment)
    if options.json:
        print_json([asdict(each) for each in found])
        return
    rows = [trial_row(each, ()) for each in found] if options.csv else trial_rows(found)
    print_rows(TRIALS, rows, TRIALS_GIVE_WAY, is_csv=options.csv, nothing="no trials yet")


def trial_rows(trials: Sequence[wire.TrialView], shown: int | None = None) -> list[tuple[object, ...]]:
    """The first `shown`, without the hyperparameters that all trials share."""
    same = same_hparams(trials)
    return [trial_row(each, same) for each in trials[:shown]]


def trial_row(each: wire.TrialView, same: Container[str]) -> tuple[object, ...]:
    length = f"{each.length}/{each.target}" if each.target is not None else each.length
    at = each.best_length if each.best is not None else ""
    values = (length, shown_value(each.latest), shown_value(each.best), at)
    hparams = shown_hparams(each.hparams, same)
    return each.trial, each.trial_id, each.state, *values, each.num_restarts, hparams, each.reason


@command(ListCheckpointsOptions, name="list-checkpoints", no_args_is_help=True)
def list_checkpoints(options: ListCheckpointsOptions) -> None:
    """List the checkpoints of an experiment."""
    with link_of(options) as link:
        found = experiments.all_checkpoints(link, options.experiment)
        if options.best is not None:
            view = link(lambda coordinator: coordinator.experiment(options.experiment))
            found = experiments.best_checkpoints(found, view, number=options.best)
    if options.json:
        print_json([asdict(each) for each in found])
        return
    print_rows(CHECKPOINTS, checkpoint_rows(found), _CHECKPOINTS_GIVE_WAY, is_csv=options.csv, nothing="no checkpoints")


def checkpoint_rows(found: Iterable[wire.SavedCheckpoint]) -> list[tuple[object, ...]]:
    return [
        (each.trial, each.step, each.uuid, shown_value(each.metric), each.state, shown_time(each.created_at), each.uri)
        for each in found
    ]


def print_rows(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    give_way: Sequence[str] = (),
    *,
    is_csv: bool = False,
    title: str | None = None,
    nothing: str = "",
) -> None:
    rows = list(rows)
    if is_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows([columns, *rows])
    elif not rows:
        click.echo(nothing)
    else:
        width = None if sys.stdout.isatty() else _WIDEST  # a pipe has no width: programs need whole names
        console = Console(width=width)
        kept = fitting(columns, rows, console.width, give_way=give_way, folded=_FOLDED)
        left = [name for name in columns if name not in {columns[number] for number in kept}]
        caption = f"columns that do not fit: {', '.join(left)}; use --json" if left else None
        shown, cells = [columns[number] for number in kept], [[row[number] for number in kept] for row in rows]
        whole = [name for name in shown if name not in _FOLDED]
        console.print(table(title, shown, cells, caption=caption, folds=True, whole=whole))


def shown_time(seconds: float | None) -> str:
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}" if seconds else ""


COMMANDS = {
    "list": list_experiments,
    "config": config,
    "list-trials": list_trials,
    "lt": list_trials,
    "list-checkpoints": list_checkpoints,
    "lc": list_checkpoints,
}
