"""`everstep trial describe, logs, download, kill`: one trial, by its ID."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from everstep import wire
from everstep.cli.experiment_files import download_to
from everstep.cli.experiment_link import ExperimentsOptions, link_of
from everstep.cli.experiment_show import CHECKPOINTS, checkpoint_rows, print_rows, shown_time
from everstep.cli.experiment_table import shown_value
from everstep.cli.facts_text import print_facts
from everstep.cli.logs import parse_time, shown_line
from everstep.cli.options import command, say
from everstep.cli.printable import printable
from everstep.cli.submitted import leave
from everstep.cli.tables import print_json
from everstep.errors import NoCheckpoint, UsageError
from everstep.jobs import experiments
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.jobs.trial_log import TrialLines, trial_lines
from everstep.jobs.trial_metrics import metric_summaries, trial_metrics
from everstep.record.log_levels import LEVELS
from everstep.settings import setting
from everstep.wire.experiments import COMPLETED
from everstep.wire.hparams import flat

_METRICS = ("group", "batches", "metric", "value")
_SUMMARY = ("group", "metric", "last", "min", "max", "count")
_STREAMS = ("stdout", "stderr")
_LEVELS = {"trace": 0, **LEVELS}


@dataclass(frozen=True, kw_only=True)
class TrialOptions(ExperimentsOptions):
    trial: int = setting(..., "ID of the trial", is_argument=True, metavar="ID", least=1)


@dataclass(frozen=True, kw_only=True)
class DescribeTrialOptions(TrialOptions):
    metrics: bool = setting(False, "Also show all metrics that it reported")
    metrics_summary: bool = setting(False, "Also show the last, least and greatest value of each metric")
    csv: bool = setting(False, "Print CSV instead of a table: metrics, their summary, or checkpoints")
    json: bool = setting(False, "Print JSON instead of tables")


@dataclass(frozen=True, kw_only=True)
class TrialLogsOptions(TrialOptions):
    follow: bool = setting(False, "Also print new lines, until the trial ends", also=("-f",))
    head: int | None = setting(None, "Only the first N lines", metavar="N", least=1)
    tail: int | None = setting(None, "Only the last N lines; with --follow, also new ones", metavar="N", least=1)
    agent_id: tuple[str, ...] = setting((), "Only lines from this node; repeatable", metavar="NAME")
    rank_id: tuple[int, ...] = setting(
        (), "Only lines of the worker with this rank; repeatable", metavar="RANK", least=0
    )
    timestamp_before: str | None = setting(
        None, "Only lines before this time: 10m (ago), 14:30, 2026-01-31T14:30", metavar="TIME"
    )
    timestamp_after: str | None = setting(None, "Only lines from this time on", metavar="TIME")
    level: str | None = setting(None, f"Only lines of at least this level: {', '.join(_LEVELS)}", metavar="LEVEL")
    stdtype: tuple[str, ...] = setting((), "Only this stream, stdout or stderr", metavar="STREAM")
    grep: str = setting("", "Only lines with this text", metavar="TEXT")
    timestamps: bool = setting(False, "Print the time of each line")
    json: bool = setting(False, "Print each line as JSON")


@dataclass(frozen=True, kw_only=True)
class DownloadTrialOptions(TrialOptions):
    best: bool = setting(False, "The best checkpoint, by the searcher's metric or --sort-by")
    latest: bool = setting(False, "The newest checkpoint")
    uuid: str | None = setting(None, "The checkpoint with this UUID", metavar="UUID")
    sort_by: str | None = setting(None, "The best one by this metric", metavar="NAME")
    smaller_is_better: bool = setting(False, "With --sort-by: smaller values are better; default: as in the searcher")
    larger_is_better: bool = setting(False, "With --sort-by: larger values are better; default: as in the searcher")
    output_dir: Path | None = setting(
        None, "Folder to download to; default: checkpoints/UUID", also=("-o",), metavar="DIR"
    )
    json: bool = setting(False, "Print JSON instead of the folder")


@dataclass(frozen=True, kw_only=True)
class KillTrialOptions(TrialOptions):
    json: bool = setting(False, "Print JSON instead of a line")


def _find(link: CoordinatorLink, trial: int) -> wire.TrialView:
    return link(lambda coordinator: coordinator.find_trial(trial))


@command(DescribeTrialOptions, name="describe", no_args_is_help=True)
def describe(options: DescribeTrialOptions) -> None:
    """Show a trial: its state and why, its hyperparameters, its checkpoints, and its metrics."""
    with link_of(options) as link:
        view = _find(link, options.trial)
        saved = _checkpoints(link, view)
        told = list(trial_metrics(link, view.job)) if options.metrics else []
        summary = metric_summaries(link, view.job) if options.metrics_summary else {}
    metric_rows = [(e.group, e.steps_completed, name, value) for e in told for name, value in e.metrics.items()]
    summary_rows = [
        (group, name, *values.values()) for group, found in summary.items() for name, values in found.items()
    ]
    if options.json:
        more: dict[str, Any] = {"metrics": [asdict(each) for each in told]} if options.metrics else {}
        more |= {"metrics_summary": summary} if options.metrics_summary else {}
        print_json({**asdict(view), "checkpoints": [asdict(each) for each in saved], **more})
        return
    if not options.csv:
        print_facts(_facts(view))
    if options.metrics:
        print_rows(_METRICS, metric_rows, is_csv=options.csv, nothing="no metrics yet")
    if options.metrics_summary and not (options.csv and options.metrics):
        print_rows(_SUMMARY, summary_rows, is_csv=options.csv, nothing="no metrics yet")
    if not options.csv or not (options.metrics or options.metrics_summary):
        print_rows(CHECKPOINTS, checkpoint_rows(saved), is_csv=options.csv, nothing="no checkpoints")


def _facts(view: wire.TrialView) -> list[tuple[str, object]]:
    length = f"{view.length} of {view.target}" if view.target is not None else view.length
    return [
        ("trial", f"{view.trial_id} (number {view.trial} of experiment {view.experiment}, job {view.job})"),
        ("state", f"{view.state}{f': {view.reason}' if view.reason else ''}"),
        ("trained", length),
        ("latest", shown_value(view.latest)),
        ("best", f"{shown_value(view.best)} after {view.best_length}" if view.best is not None else ""),
        ("slots", view.num_slots or ""),
        ("restarts", view.num_restarts or ""),
        ("seed", view.seed),
        ("began", shown_time(view.started_at)),
        ("ended", shown_time(view.ended_at)),
        ("hyperparams", "".join(f"\n  {name}: {value}" for name, value in flat(view.hparams))),
    ]


def _checkpoints(link: CoordinatorLink, view: wire.TrialView) -> list[wire.SavedCheckpoint]:
    found = experiments.all_checkpoints(link, view.experiment)
    return [each for each in found if each.trial == view.trial]


@command(TrialLogsOptions, name="logs", no_args_is_help=True)
def logs(options: TrialLogsOptions) -> int:
    """Print the output of a trial."""
    wanted = _wanted(options)
    is_silent = True
    with link_of(options) as link:
        view = _find(link, options.trial)
        for line in trial_lines(link, view.experiment, view.trial, wanted, follow=options.follow):
            is_silent = False
            if options.json:
                click.echo(json.dumps(asdict(line)))
            else:
                click.echo(shown_line(line, is_one=len(options.agent_id) == 1, has_time=options.timestamps))
    if is_silent:
        say(f"no output from trial {options.trial}" if wanted == TrialLines() else "no line matches")
    return leave(0)


def _wanted(options: TrialLogsOptions) -> TrialLines:
    level = (options.level or "trace").lower()
    if level not in _LEVELS:
        hint = f"use one of {', '.join(_LEVELS)}"
        raise UsageError(f"--level {options.level}: unknown level", hint=hint, code="log-level-unknown")
    if other := [each for each in options.stdtype if each not in _STREAMS]:
        raise UsageError(f"--stdtype {other[0]}", hint=f"use {' or '.join(_STREAMS)}", code="log-stream-unknown")
    now = time.time()
    after, before = options.timestamp_after, options.timestamp_before
    return TrialLines(
        head=options.head,
        tail=options.tail,
        nodes=options.agent_id,
        ranks=options.rank_id,
        streams=options.stdtype,
        level=_LEVELS[level],
        since=-1.0 if after is None else parse_time(after, now, is_past=True),
        until=-1.0 if before is None else parse_time(before, now),
        text=options.grep,
    )


@command(DownloadTrialOptions, name="download", no_args_is_help=True)
def download(options: DownloadTrialOptions) -> None:
    """Download a checkpoint of a trial with its code; the best one, unless another is asked for."""
    with link_of(options) as link:
        chosen = _chosen(link, _find(link, options.trial), options)
    path = download_to(options, chosen.uuid, options.output_dir or Path("checkpoints") / chosen.uuid)
    if options.json:
        print_json({"uuid": chosen.uuid, "step": chosen.step, "path": path})
    else:
        say(f"step {chosen.step}")
        click.echo(path)


def _chosen(link: CoordinatorLink, view: wire.TrialView, options: DownloadTrialOptions) -> wire.SavedCheckpoint:
    if sum((options.best or options.sort_by is not None, options.latest, options.uuid is not None)) > 1:
        raise UsageError("several checkpoints are asked for", hint="--best, --latest or --uuid", code="several-asked")
    if (options.smaller_is_better or options.larger_is_better) and options.sort_by is None:
        hint = "name the metric, too: --sort-by METRIC"
        raise UsageError("a direction without --sort-by", hint=hint, code="sort-direction-alone")
    if options.smaller_is_better and options.larger_is_better:
        raise UsageError("smaller and larger values are better", hint="give one of them", code="sort-directions")
    there = [each for each in _checkpoints(link, view) if each.state == COMPLETED]
    if options.uuid is not None:
        found = [each for each in there if each.uuid == options.uuid]
    elif options.latest:
        found = sorted(there, key=lambda each: (-each.created_at, -each.step))
    else:
        experiment = link(lambda coordinator: coordinator.experiment(view.experiment))
        is_smaller = options.smaller_is_better if options.smaller_is_better or options.larger_is_better else None
        found = experiments.best_checkpoints(there, experiment, metric=options.sort_by, smaller_is_better=is_smaller)
    if not found:
        raise NoCheckpoint(
            f"trial {view.trial_id} has no such checkpoint; {len(there)} still exist",
            hint=f"everstep trial describe {view.trial_id}",
            code="no-checkpoint",
        )
    return found[0]


@command(KillTrialOptions, name="kill", no_args_is_help=True)
def kill(options: KillTrialOptions) -> None:
    """End a trial at once. Its search continues without it."""
    with link_of(options) as link:
        view = _find(link, options.trial)
        view = link(lambda coordinator: coordinator.kill_trial(view.experiment, view.trial))
    if options.json:
        print_json(asdict(view))
    else:
        click.echo(printable(f"trial {view.trial_id} {view.state}{f': {view.reason}' if view.reason else ''}"))


COMMANDS = {"describe": describe, "logs": logs, "download": download, "kill": kill}
