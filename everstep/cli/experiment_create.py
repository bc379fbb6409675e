"""`everstep e create`, `fork` and `continue`: read the file, pack the code, create, and follow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from everstep import env
from everstep.cli.experiment_follow import follow
from everstep.cli.experiment_link import ExperimentOptions, ExperimentsOptions, link_of
from everstep.cli.options import command, say
from everstep.errors import UsageError
from everstep.jobs import experiments
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.pool.machine_kind import num_slots
from everstep.settings import setting
from everstep.storage.code_archive import IGNORE_FILE, LARGE_BYTES


@dataclass(frozen=True, kw_only=True)
class CreateOptions(ExperimentsOptions):
    config_file: Path = setting(
        ..., "The experiment file, Determined's or Everstep's", is_argument=True, metavar="CONFIG"
    )
    model_dir: Path | None = setting(
        None, "Folder with the code; without it, only what --include names", is_argument=True, metavar="[MODEL_DIR]"
    )
    include: tuple[Path, ...] = setting(
        (), "Another file or folder to add to the code; repeatable", also=("-i",), metavar="PATH"
    )
    config: tuple[str, ...] = setting(
        (), "Change a key, such as searcher.max_trials=4; repeatable", metavar="KEY=VALUE"
    )
    test_mode: bool = setting(
        False, "One trial with one batch, one validation, and one checkpoint", also=("--test", "-t")
    )
    local: bool = setting(
        False,
        "Run on this machine, even if the environment names a coordinator; with --test, without a pool",
    )
    follow_first_trial: bool = setting(False, "Print the output of the first trial until it ends", also=("-f",))
    paused: bool = setting(False, "Create it without starting it")


@command(CreateOptions, name="create", no_args_is_help=True)
def create(options: CreateOptions) -> int:
    """Create an experiment. Without a coordinator, it runs on this machine, and this command shows it until it ends.

    Ctrl-C pauses a local experiment. `everstep e activate ID`, or the same command again, continues it exactly."""
    prepared = experiments.prepare(
        options.config_file,
        options.model_dir,
        changes=options.config,
        includes=options.include,
        is_paused=options.paused,
        is_test=options.test_mode,
    )
    if options.local and options.test_mode:
        from everstep.pool.local_test import run_test

        return run_test(prepared, say)
    with link_of(options, is_local=options.local) as link:
        if link.is_local:
            click.echo(local_line())
        for note in (*prepared.notes, f"code: {prepared.code.files.summary}"):
            say(note)
        if (size := len(prepared.code.data)) > LARGE_BYTES:
            say(f"the code is {size >> 20} MiB as a tarball: does it contain data? List it in {IGNORE_FILE}")
        if not link.is_local or options.test_mode:
            view = experiments.create(link, prepared)
            click.echo(f"Created experiment {view.experiment}")
        else:
            created = experiments.create_or_continue(link, prepared, Path.cwd())
            view = created.view
            click.echo(f"{'Created' if created.is_new else 'Continuing'} experiment {view.experiment}")
            if not created.is_new and not options.paused:
                experiments.act(link, view.experiment, "activate", "the same command was given again")
        return _shown(link, view.experiment, options)


def local_line() -> str:
    number = num_slots(env.value(env.LOCAL_SLOTS) or "auto")
    slots = f"{number} slot{'s' * (number != 1)} on this machine"
    return f"local: {slots}; --coordinator URL, EVERSTEP_COORDINATOR or DET_MASTER select a cluster"


def _shown(link: CoordinatorLink, experiment: int, options: CreateOptions) -> int:
    if options.paused:
        say(f"paused; `everstep e activate {experiment}` starts it")
        return 0
    if options.follow_first_trial:
        from everstep.cli.experiment_logs import follow_first_trial

        return follow_first_trial(link, experiment)
    if not link.is_local and not options.test_mode:
        return 0
    code = follow(link, experiment)
    if options.test_mode and code < 128:
        experiments.act(link, experiment, "archive")
    return code


# --- from an earlier one ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AgainOptions(ExperimentOptions):
    config: tuple[str, ...] = setting(
        (), "Change a key, such as searcher.max_trials=4; repeatable", metavar="KEY=VALUE"
    )
    config_file: Path | None = setting(None, "File whose keys replace those of the old file", metavar="FILE")
    follow_first_trial: bool = setting(False, "Print the output of the first trial until it ends", also=("-f",))
    paused: bool = setting(False, "Create it without starting it")


@command(AgainOptions, name="fork", no_args_is_help=True)
def fork(options: AgainOptions) -> int:
    """Create an experiment with the file and code of another one, with the given changes."""
    with link_of(options) as link:
        return _again(link, experiments.fork_of(link, options.experiment, options.config, _content(options)), options)


@command(AgainOptions, name="continue", no_args_is_help=True)
def continue_(options: AgainOptions) -> int:
    """Start a new experiment from one that is over: its trials begin with the weights of the best trial.

    Only the weights are kept: optimizers and the position in the data start over. To continue a paused experiment
    exactly, use `everstep e activate`."""
    with link_of(options) as link:
        spec, trial = experiments.continued(link, options.experiment, options.config, _content(options))
        say(f"beginning with the weights of trial {trial.trial} (ID {trial.trial_id}) of experiment {trial.experiment}")
        return _again(link, spec, options)


def _again(link: CoordinatorLink, spec: Any, options: AgainOptions) -> int:
    from dataclasses import replace

    if link.is_local:
        click.echo(local_line())
    made = replace(spec, is_paused=options.paused)
    view = link(lambda coordinator: coordinator.create_experiment(made))
    click.echo(f"Created experiment {view.experiment}")
    if options.paused:
        return 0
    if options.follow_first_trial:
        from everstep.cli.experiment_logs import follow_first_trial

        return follow_first_trial(link, view.experiment)
    return follow(link, view.experiment) if link.is_local else 0


def _content(options: AgainOptions) -> dict[str, Any] | None:
    if options.config_file is None:
        return None
    from everstep.job_file.load import read_text
    from everstep.job_file.tree import parse

    content = parse(read_text(options.config_file), name=str(options.config_file)).plain()
    if not isinstance(content, dict):
        raise UsageError(
            f"{options.config_file} is not a mapping", hint="searcher: {max_trials: 8}", code="job-file-not-a-mapping"
        )
    return content


COMMANDS = {"create": create, "fork": fork, "continue": continue_}
