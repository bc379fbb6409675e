"""`everstep e download` and `download-model-def`: checkpoints and code of an experiment, as folders here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from everstep.cli.experiment_link import ExperimentOptions, ExperimentsOptions, link_of
from everstep.cli.options import command, say
from everstep.errors import NoCheckpoint, UsageError
from everstep.experimental.checkpoint import get_checkpoint
from everstep.experimental.session import CURRENT
from everstep.jobs import experiments
from everstep.settings import setting


@dataclass(frozen=True, kw_only=True)
class DownloadOptions(ExperimentOptions):
    output_dir: Path = setting(
        Path("checkpoints"),
        "Folder to download to; each checkpoint gets a subfolder named for its UUID",
        also=("-o",),
        metavar="DIR",
    )
    top_n: int = setting(1, "Number of checkpoints to download, best first", metavar="N", least=1)
    sort_by: str | None = setting(None, "Metric to sort by; default: the searcher's", metavar="NAME")
    smaller_is_better: bool = setting(False, "With --sort-by: smaller values are better; default: as in the searcher")
    larger_is_better: bool = setting(False, "With --sort-by: larger values are better; default: as in the searcher")
    trial: int | None = setting(None, "Only checkpoints of the trial with this number", metavar="N", least=1)


@dataclass(frozen=True, kw_only=True)
class CodeOptions(ExperimentOptions):
    output_dir: Path | None = setting(
        None, "Folder for the code; default: experiment_ID_model_def", also=("-o",), metavar="DIR"
    )


@command(DownloadOptions, name="download", no_args_is_help=True)
def download(options: DownloadOptions) -> None:
    """Download the best checkpoints of an experiment, with their code, from the storage that holds them."""
    is_smaller = _direction(options)
    with link_of(options) as link:
        view = link(lambda coordinator: coordinator.experiment(options.experiment))
        found = [
            each
            for each in experiments.all_checkpoints(link, options.experiment)
            if options.trial in (None, each.trial)
        ]
        best = experiments.best_checkpoints(
            found, view, number=options.top_n, metric=options.sort_by, smaller_is_better=is_smaller
        )
    if not best:
        raise NoCheckpoint(
            f"experiment {options.experiment} has no checkpoint that still exists",
            hint=f"everstep e list-checkpoints {options.experiment}",
            code="no-checkpoint",
        )
    for each in best:
        path = download_to(options, each.uuid, options.output_dir / each.uuid)
        say(f"trial {each.trial}, step {each.step}")
        click.echo(path)


def download_to(options: ExperimentsOptions, uuid: str, folder: Path) -> str:
    """The checkpoint with its code. A folder above it that is new ignores itself."""
    if options.coordinator is not None:
        CURRENT.login(options.coordinator, options.token_file)
    try:
        _keep_out_of_code(folder.parent)
        return str(get_checkpoint(uuid).download(folder))
    except OSError as error:
        raise UsageError(
            f"cannot download to {folder}: {error.strerror or error}",
            hint="free some space there, or name another folder with --output-dir",
            code="download-folder",
        ) from error


def _direction(options: DownloadOptions) -> bool | None:
    """Whether smaller values are better; None: as in the searcher."""
    given = {"--smaller-is-better": options.smaller_is_better, "--larger-is-better": options.larger_is_better}
    flags = [flag for flag, is_given in given.items() if is_given]
    if len(flags) > 1:
        raise UsageError(f"{' and '.join(flags)} together", hint="give one of them", code="sort-directions")
    if flags and options.sort_by is None:
        raise UsageError(
            f"{flags[0]} is given without --sort-by",
            hint=f"name the metric: --sort-by METRIC {flags[0]}; by default, the searcher's metric and direction count",
            code="sort-direction-alone",
        )
    return options.smaller_is_better if flags else None


def _keep_out_of_code(folder: Path) -> None:
    """A new folder ignores itself, so that the next experiment with this code does not pack it."""
    if not folder.exists():
        folder.mkdir(parents=True)
        (folder / ".gitignore").write_text("*\n")


@command(CodeOptions, name="download-model-def", no_args_is_help=True)
def download_model_def(options: CodeOptions) -> None:
    """Download the code that an experiment runs."""
    with link_of(options) as link:
        view = link(lambda coordinator: coordinator.experiment(options.experiment))
        folder = options.output_dir or Path(f"experiment_{options.experiment}_model_def")
        click.echo(str(experiments.download_code(link, view, folder)))


COMMANDS = {"download": download, "download-model-def": download_model_def}
