"""`everstep e describe`: an experiment, its trials, and with --metrics all that they reported; here or as files."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from everstep import wire
from everstep.cli.experiment_link import link_of
from everstep.cli.experiment_show import (
    CHECKPOINTS,
    TRIALS,
    TRIALS_GIVE_WAY,
    RowsOptions,
    checkpoint_rows,
    print_rows,
    shown_time,
    trial_row,
    trial_rows,
)
from everstep.cli.experiment_table import goal_of, shown_value
from everstep.cli.options import command
from everstep.cli.printable import counted, printable_lines
from everstep.cli.scheduling_text import scheduling_text
from everstep.cli.tables import print_json
from everstep.jobs import experiments
from everstep.jobs.trial_metrics import StepMetrics, trial_metrics
from everstep.settings import setting

_METRICS = ("trial", "group", "batches", "metric", "value")
_MOST_SHOWN = 20
Told = dict[int, list[StepMetrics]]  # by trial


@dataclass(frozen=True, kw_only=True)
class DescribeOptions(RowsOptions):
    metrics: bool = setting(False, "Also show all metrics that the trials reported")
    outdir: Path | None = setting(
        None, "Write trials.csv, checkpoints.csv, and with --metrics metrics.csv, to this folder", metavar="DIR"
    )


@command(DescribeOptions, name="describe", no_args_is_help=True)
def describe(options: DescribeOptions) -> None:
    """Show an experiment: its state and why, its best result, its trials."""
    with link_of(options) as link:
        view = link(lambda coordinator: coordinator.experiment(options.experiment))
        trials = experiments.all_trials(link, options.experiment, sort="metric")
        told = {each.trial: list(trial_metrics(link, each.job)) for each in trials} if options.metrics else {}
        if options.outdir is not None:
            saved = experiments.all_checkpoints(link, options.experiment)
            _write(options.outdir, trials, saved, told if options.metrics else None)
            return
    if options.json:
        print_json({**asdict(view), "trials": [_plain(each, told) for each in trials]})
    elif options.csv and options.metrics:
        print_rows(_METRICS, _metric_rows(told), is_csv=True)
    elif options.csv:
        print_rows(TRIALS, [trial_row(each, ()) for each in trials], is_csv=True)
    else:
        _print(view, trials, told)


def _plain(trial: wire.TrialView, told: Told) -> dict[str, Any]:
    metrics = {"metrics": [asdict(each) for each in told[trial.trial]]} if trial.trial in told else {}
    return {**asdict(trial), **metrics}


def _metric_rows(told: Told) -> list[tuple[object, ...]]:
    return [
        (trial, each.group, each.steps_completed, name, value)
        for trial, found in sorted(told.items())
        for each in found
        for name, value in each.metrics.items()
    ]


def _write(
    folder: Path, trials: Iterable[wire.TrialView], saved: Iterable[wire.SavedCheckpoint], told: Told | None
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, tuple[Sequence[str], list[tuple[object, ...]]]] = {
        "trials.csv": (TRIALS, [trial_row(each, ()) for each in trials]),
        "checkpoints.csv": (CHECKPOINTS, checkpoint_rows(saved)),
    }
    if told is not None:
        files["metrics.csv"] = (_METRICS, _metric_rows(told))
    for name, (columns, rows) in files.items():
        with (folder / name).open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([columns, *rows])
        click.echo(str(folder / name))


def _print(view: wire.ExperimentView, trials: Sequence[wire.TrialView], told: Told) -> None:
    for name, value in _facts(view):
        if value:
            click.echo(printable_lines(f"{name + ':':14}{value}"))
    more = f"best {_MOST_SHOWN} of {len(trials)} trials; all: everstep e list-trials {view.experiment}"
    rows = trial_rows(trials, _MOST_SHOWN)
    title = more if len(trials) > _MOST_SHOWN else None
    print_rows(TRIALS, rows, TRIALS_GIVE_WAY, title=title, nothing="no trials yet")
    if told:
        print_rows(_METRICS, _metric_rows(told), nothing="no metrics yet")


def _facts(view: wire.ExperimentView) -> list[tuple[str, str]]:
    best = view.best
    result = (
        f"{view.metric} {shown_value(best.metric)}, trial {best.trial} after {counted(best.length, view.unit)}"
        if best
        else ""
    )
    kept = view.kept
    return [
        ("experiment", f"{view.experiment} {view.name}".strip()),
        ("state", f"{view.state}{' (archived)' * view.is_archived}{f': {view.reason}' if view.reason else ''}"),
        ("searcher", goal_of(view)),
        ("progress", f"{view.progress:.0%}, {view.num_slots} slots in use"),
        ("pool", scheduling_text(view)),
        ("owner", view.owner),
        ("best", result),
        ("checkpoint", best.checkpoint if best else ""),
        ("description", view.description),
        ("labels", ", ".join(view.labels)),
        ("notes", view.notes),
        ("forked from", str(view.forked_from or "")),
        (
            "keeps",
            f"{kept.experiment_best} best of all, {kept.trial_best} best and {kept.trial_latest} newest of each trial",
        ),
        ("created", shown_time(view.created_at)),
        ("ended", shown_time(view.ended_at)),
    ]


COMMANDS = {"describe": describe}
