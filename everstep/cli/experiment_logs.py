"""`everstep e logs`: the output of one of an experiment's trials, which is a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import click

from everstep.cli.experiment_follow import Interrupted, exit_code, interruptible
from everstep.cli.experiment_link import ExperimentOptions, link_of
from everstep.cli.logs import shown_line
from everstep.cli.options import command, say
from everstep.cli.submitted import leave
from everstep.jobs import experiments
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.jobs.trial_log import TrialLines, trial_lines
from everstep.settings import setting


@dataclass(frozen=True, kw_only=True)
class ExperimentLogsOptions(ExperimentOptions):
    trial: int = setting(1, "Number of the trial in the experiment", metavar="N", least=1)
    follow: bool = setting(False, "Also print new lines, until the trial ends", also=("-f",))
    tail: int | None = setting(None, "Only the last N lines; with --follow, also new ones", metavar="N", least=1)
    timestamps: bool = setting(False, "Print the time of each line")


@command(ExperimentLogsOptions, name="logs", no_args_is_help=True)
def logs(options: ExperimentLogsOptions) -> int:
    """Print the output of a trial; without --trial, of the first one."""
    with link_of(options) as link:
        link(lambda coordinator: coordinator.trial(options.experiment, options.trial))  # refused if there is none
        is_silent = print_log(link, options.experiment, options.trial, options)
    if is_silent:
        say(f"no output from trial {options.trial} of experiment {options.experiment}")
    return leave(0)


def print_log(link: CoordinatorLink, experiment: int, trial: int, options: ExperimentLogsOptions | None = None) -> bool:
    """Print a trial's output; without options, all lines until the trial ends. Returns whether there was none."""
    tail, follows = (options.tail, options.follow) if options is not None else (None, True)
    is_silent = True
    for line in trial_lines(link, experiment, trial, TrialLines(tail=tail), follow=follows):
        is_silent = False
        click.echo(shown_line(line, is_one=True, has_time=options is not None and options.timestamps))
    return is_silent


def follow_first_trial(link: CoordinatorLink, begin: Callable[[], int]) -> int:
    """Begin an experiment, and print the output of its first trial until that ends. Exit code 0 if the experiment
    completed, or continues with other trials."""
    experiment = 0
    try:
        with interruptible() as interruptions:
            with interruptions.held():
                experiment = begin()
            first = experiments.first_trial(link, experiment)
            if first is not None:
                say(f"following trial {first.trial} of experiment {experiment}")
                print_log(link, experiment, first.trial)
    except Interrupted as interrupted:
        if experiment:
            say(f"experiment {experiment} continues; `everstep e pause {experiment}` pauses it")
        return leave(128 + interrupted.number)
    view = link(lambda coordinator: coordinator.experiment(experiment))
    say(f"experiment {experiment} {view.state}: {view.reason}")
    is_over = view.ended_at is not None
    return leave(exit_code(view) if is_over else 0)


COMMANDS = {"logs": logs}
