"""`everstep e export`: trials, metrics and checkpoints as files, or to MLflow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from everstep.cli.experiment_link import ExperimentsOptions, link_of
from everstep.cli.options import command, refuse, say
from everstep.jobs.export_files import CSV, JSON_LINES, export_files, read_experiments
from everstep.settings import setting

MLFLOW = "mlflow"
_TARGETS = (CSV, JSON_LINES, MLFLOW)


@dataclass(frozen=True, kw_only=True)
class ExperimentExportOptions(ExperimentsOptions):
    experiments: tuple[int, ...] = setting(..., "Numbers of experiments", is_argument=True, metavar="ID...", least=1)
    to: str = setting(CSV, "csv, jsonl (JSON lines), or mlflow", metavar="FORM")
    output_dir: Path = setting(
        Path("export"), "Folder for the files trials, metrics and checkpoints", also=("-o",), metavar="DIR"
    )
    uri: str | None = setting(
        None,
        "With --to mlflow: URL of a tracking server, or a database such as sqlite:///mlflow.db; default: "
        "MLFLOW_TRACKING_URI",
        metavar="URI",
    )


@command(ExperimentExportOptions, name="export", no_args_is_help=True)
def export(options: ExperimentExportOptions) -> None:
    """Export experiments: trials with hyperparameters and results, all points of all metrics, checkpoints."""
    if options.to not in _TARGETS:
        raise click.BadParameter(f"{options.to!r} is not one of {', '.join(_TARGETS)}", param_hint="'--to'")
    refuse(["output_dir"] if options.to == MLFLOW else ["uri"], f"--to {options.to}")
    with link_of(options) as link:
        found = read_experiments(link, options.experiments)
        if options.to == MLFLOW:
            from everstep.jobs.mlflow_export import export_to_mlflow

            for line in export_to_mlflow(link, found, options.uri, say):
                click.echo(line)
            return
        for path in export_files(link, found, options.output_dir, options.to, say):
            click.echo(str(path))


COMMANDS = {"export": export}
