"""`everstep e create`, `fork` and `continue`: read the file, pack the code, create, and follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import click

from everstep import wire
from everstep.cli.experiment_follow import follow
from everstep.cli.experiment_link import ExperimentOptions, link_of, local_line
from everstep.cli.experiment_platform import PlatformPoolOptions, own_pool
from everstep.cli.options import command, refuse, say
from everstep.cli.printable import printable
from everstep.cli.scheduling_text import unusual_scheduling
from everstep.errors import UsageError
from everstep.jobs import experiments, models, new_experiments
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.settings import setting
from everstep.storage.code_archive import IGNORE_FILE, LARGE_BYTES
from everstep.wire.experiments import PAUSED


@dataclass(frozen=True, kw_only=True)
class CreateOptions(PlatformPoolOptions):
    config_file: Path = setting(
        ..., "The experiment file, Determined's or Everstep's", is_argument=True, metavar="CONFIG"
    )
    model_dir: Path | None = setting(
        None, "Folder with the code; without it, only the --include paths", is_argument=True, metavar="[MODEL_DIR]"
    )
    include: tuple[Path, ...] = setting(
        (), "Another file or folder to add to the code; repeatable", also=("-i",), metavar="PATH"
    )
    config: tuple[str, ...] = setting(
        (), "Change a key, such as searcher.max_trials=4; repeatable", metavar="KEY=VALUE"
    )
    template: str | None = setting(
        None, "Template at the coordinator, whose keys count where CONFIG has none", metavar="NAME"
    )
    test_mode: bool = setting(
        False, "One trial with one batch, one validation, and one checkpoint", also=("--test", "-t")
    )
    local: bool = setting(
        False,
        "Run on this machine, even if the environment names a coordinator; with --test, without a pool",
    )
    follow_first_trial: bool = setting(False, "Print the output of the first trial until it ends", also=("-f",))
    paused: bool = setting(False, "Create the experiment without starting it")


@command(CreateOptions, name="create", no_args_is_help=True)
def create(options: CreateOptions) -> int:
    """Create an experiment. Without a coordinator, it runs on this machine, and this command shows it until it ends.

    With --platform, it runs on nodes that are created for it, and released when it ends or pauses. The keys of the file
    that describe machines (image, nodes, resources, platform, …) describe these nodes.

    Ctrl-C pauses a local experiment. `everstep e activate ID`, or the same command again, continues it exactly."""
    pool = own_pool(options, options.config_file, options.config)
    below = ""
    if options.template is not None:
        refuse(["template"] if pool is not None else [], "with --platform, the file alone describes the machines")
        with link_of(options, is_local=options.local) as link:
            below = models.template_text(link, options.template)
    prepared = new_experiments.prepare(
        options.config_file,
        options.model_dir,
        below=below,
        changes=(*options.config, *(pool.changes if pool is not None else ())),
        has_own_pool=pool is not None,
        includes=options.include,
        is_paused=options.paused,
        is_test=options.test_mode,
    )
    if options.local and options.test_mode:
        from everstep.pool.local_test import run_test

        return run_test(prepared, say)
    with link_of(options, is_local=options.local or pool is not None) as link:
        if link.is_local:
            click.echo(local_line(link) if pool is None else pool.line)
        if pool is not None:
            pool.ask_for()
        for note in (
            *(pool.notes if pool is not None else ()),
            *prepared.notes,
            f"code: {prepared.code.files.summary}",
        ):
            say(note)
        if (size := len(prepared.code.data)) > LARGE_BYTES:
            say(f"the code is {size >> 20} MiB as a tarball; if it contains data, list the data in {IGNORE_FILE}")
        new_experiments.upload(link, prepared.code)
        if options.test_mode:
            return _tested(link, prepared, options)
        if link.is_local:
            return _begun(link, lambda: _begin_or_continue(link, prepared), options)
        return _begun(link, lambda: _begin(link, prepared.spec, prepared.secrets), options)


def _begin(link: CoordinatorLink, spec: wire.ExperimentSpec, secrets: Mapping[str, str]) -> wire.ExperimentView:
    view = new_experiments.begin(link, spec, secrets)
    click.echo(f"Created experiment {view.experiment}")
    if told := unusual_scheduling(view):
        click.echo(printable(told))
    return view


def _begin_or_continue(link: CoordinatorLink, prepared: new_experiments.PreparedExperiment) -> wire.ExperimentView:
    created = new_experiments.begin_or_continue(link, prepared.spec, Path.cwd(), prepared.secrets)
    number = created.view.experiment
    click.echo(f"{'Created' if created.is_new else 'Continuing'} experiment {number}")
    if created.is_new or prepared.spec.is_paused:
        return created.view
    return experiments.act(link, number, "activate", "the same command was run again")


def _tested(link: CoordinatorLink, prepared: new_experiments.PreparedExperiment, options: CreateOptions) -> int:
    begin = cache(lambda: _begin(link, prepared.spec, prepared.secrets))
    code = _begun(link, begin, options, is_shown=True)
    if not options.paused and not options.follow_first_trial and code < 128:
        experiments.act(link, begin().experiment, "archive")
    return code


def _begun(
    link: CoordinatorLink,
    begin: Callable[[], wire.ExperimentView],
    options: CreateOptions | AgainOptions,
    *,
    is_shown: bool = False,
) -> int:
    """Begin an experiment. `is_shown`: show it to its end, even if it does not run on this machine."""
    if options.paused:
        _tell_paused(begin())
        return 0
    if options.follow_first_trial:
        from everstep.cli.experiment_logs import follow_first_trial

        return follow_first_trial(link, lambda: begin().experiment)
    if link.is_local or is_shown:
        return follow(link, lambda: begin().experiment)
    begin()
    return 0


def _tell_paused(view: wire.ExperimentView) -> None:
    number = view.experiment
    if view.state == PAUSED:
        say(f"paused; `everstep e activate {number}` starts it")
    else:  # --paused only holds for a new one
        say(f"experiment {number} already exists, and is {view.state}; `everstep e pause {number}` pauses it")


# --- from an earlier one ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AgainOptions(ExperimentOptions):
    config: tuple[str, ...] = setting(
        (), "Change a key, such as searcher.max_trials=4; repeatable", metavar="KEY=VALUE"
    )
    config_file: Path | None = setting(None, "File with keys that replace those of the old file", metavar="FILE")
    follow_first_trial: bool = setting(False, "Print the output of the first trial until it ends", also=("-f",))
    paused: bool = setting(False, "Create the experiment without starting it")


@command(AgainOptions, name="fork", no_args_is_help=True)
def fork(options: AgainOptions) -> int:
    """Create an experiment with the file and code of another one, with the given changes."""
    with link_of(options) as link:
        fork = new_experiments.fork_of(link, options.experiment, options.config, _content(options))
        return _again(link, fork, options)


@command(AgainOptions, name="continue", no_args_is_help=True)
def continue_(options: AgainOptions) -> int:
    """Start a new experiment from one that is over: its trials start with the weights of the best trial.

    Only the weights are kept: optimizers and the position in the data start over. To continue a paused experiment
    exactly, use `everstep e activate`."""
    with link_of(options) as link:
        fork, trial = new_experiments.continued(link, options.experiment, options.config, _content(options))
        say(f"starting with the weights of trial {trial.trial} (ID {trial.trial_id}) of experiment {trial.experiment}")
        return _again(link, fork, options)


def _again(link: CoordinatorLink, fork: new_experiments.Fork, options: AgainOptions) -> int:
    if link.is_local:
        click.echo(local_line(link))
    for note in fork.notes:
        say(note)
    spec = replace(fork.spec, is_paused=options.paused)
    return _begun(link, lambda: _begin(link, spec, fork.secrets), options)


def _content(options: AgainOptions) -> dict[str, Any] | None:
    if options.config_file is None:
        return None
    from everstep.job_file.tree import parse, read_text

    content = parse(read_text(options.config_file), name=str(options.config_file)).plain()
    if not isinstance(content, dict):
        raise UsageError(
            f"{options.config_file} is not a mapping", hint="searcher: {max_trials: 8}", code="job-file-not-a-mapping"
        )
    return content


COMMANDS = {"create": create, "fork": fork, "continue": continue_}
