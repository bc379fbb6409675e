"""`everstep e download` and `download-model-def`: checkpoints and code of an experiment, as folders here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from everstep.cli.experiment_link import ExperimentOptions, link_of
from everstep.cli.options import command, say
from everstep.errors import NoCheckpoint
from everstep.experimental.checkpoint import get_checkpoint
from everstep.experimental.session import CURRENT
from everstep.jobs import experiments
from everstep.settings import setting


@dataclass(frozen=True, kw_only=True)
class DownloadOptions(ExperimentOptions):
    output_dir: Path = setting(
        Path("checkpoints"),
        "Folder in which each checkpoint gets a folder, named for its UUID",
        also=("-o",),
        metavar="DIR",
    )
    top_n: int = setting(1, "Number of checkpoints, the best first", metavar="N", least=1)
    sort_by: str | None = setting(None, "Metric that decides; default: the searcher's", metavar="NAME")
    smaller_is_better: bool = setting(False, "With --sort-by: smaller values of it are better")
    larger_is_better: bool = setting(False, "With --sort-by: larger values of it are better")
    trial: int | None = setting(None, "Only those of the trial with this number", metavar="N", least=1)


@dataclass(frozen=True, kw_only=True)
class CodeOptions(ExperimentOptions):
    output_dir: Path | None = setting(
        None, "Folder for the code; default: experiment_ID_model_def", also=("-o",), metavar="DIR"
    )


@command(DownloadOptions, name="download", no_args_is_help=True)
def download(options: DownloadOptions) -> None:
    """Download the best checkpoints of an experiment, with their code, from wherever they were written."""
    with link_of(options) as link:
        view = link(lambda coordinator: coordinator.experiment(options.experiment))
        is_smaller = (
            view.smaller_is_better
            if options.sort_by is None
            else options.smaller_is_better or not options.larger_is_better
        )
        found = [
            each
            for each in experiments.all_checkpoints(link, options.experiment)
            if options.trial in (None, each.trial)
        ]
        best = experiments.best_checkpoints(
            found, number=options.top_n, metric=options.sort_by or "", smaller_is_better=is_smaller
        )
    if not best:
        raise NoCheckpoint(
            f"experiment {options.experiment} has no checkpoint that still exists",
            hint=f"everstep e list-checkpoints {options.experiment}",
            code="no-checkpoint",
        )
    if options.coordinator is not None:
        CURRENT.login(options.coordinator, options.token_file)
    _keep_out_of_code(options.output_dir)
    for each in best:
        path = get_checkpoint(each.uuid).download(options.output_dir / each.uuid)
        say(f"trial {each.trial}, step {each.step}")
        click.echo(str(path))


def _keep_out_of_code(folder: Path) -> None:
    """A new folder ignores itself, so that the next experiment of this code does not pack it."""
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
