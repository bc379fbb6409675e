"""The `everstep` command: its subcommands, each in a module that is imported when the subcommand is called.

`--help` must answer at once on a login node, so nothing heavy is imported here."""

from __future__ import annotations

import importlib
import sys

import click

import everstep

_HELP_NAMES = ["-h", "--help"]
_COMMANDS = {  # name: (module, one line for --help; "" hides it)
    "run": ("run", "Train: run SCRIPT on this machine, or a job file (-f) on any platform."),
    "join": ("run", "Add this node to a running job."),
    "status": ("status", "Show a job, or how it ended."),
    "metrics": ("metrics", "Show what a job has reported, as a table, CSV or JSON."),
    "page": ("page", "Open the page of a job, running or over, in a browser."),
    "experiment": ("experiment", "Preview a search for hyperparameters (short: e)."),
    "pool": ("pool", "Offer this machine's slots to trials, and show pools."),
    "doctor": ("doctor", "Check whether this machine, or every node, is ready to train."),
    "checkpoint": ("checkpoint", "List, show, verify, export and prune checkpoints."),
    "serve": ("serve", "Run a coordinator."),
    "init": ("project", "Write the files of a new project."),
    "build": ("project", "Build the job's image with docker."),
    "convert": ("job_file", "Convert an ADS, Determined or DLRover job file, or an ElasticDL command."),
    "schema": ("job_file", "Print the JSON schema of the job file."),
    "list": ("submitted", "List the jobs that you have submitted."),
    "watch": ("submitted", "Follow a submitted job until it ends."),
    "logs": ("logs", "Print, search and follow the output of a job."),
    "show-config": ("submitted", "Show a submitted job as a job file, with the location of its parts."),
    "scale": ("submitted", "Change the number of nodes of a running job."),
    "cancel": ("submitted", "End a submitted job and clean up after it."),
    "e": ("experiment", ""),
    "trial-node": ("pool", ""),
    "local-service": ("pool", ""),
    "node": ("run", ""),
    "entry": ("run", ""),
    "coordinate": ("run", ""),
}


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"everstep.cli.{_COMMANDS[cmd_name][0]}")
        command: click.Command = module.COMMANDS[cmd_name]
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            if close := difflib.get_close_matches(args[0], _COMMANDS, n=1):
                raise click.UsageError(f"{error.message} Did you mean {close[0]!r}?", ctx) from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items() if text])


def _with_dashes(name: str) -> str:
    """torchrun spells its options with underscores; both work."""
    return name.replace("_", "-")


@click.group(
    name="everstep",
    cls=LazyGroup,
    context_settings={"token_normalize_func": _with_dashes, "help_option_names": _HELP_NAMES},
    no_args_is_help=True,
)
@click.version_option(everstep.__version__, message="everstep %(version)s")
def app() -> None:
    """Train PyTorch models on machines that come and go."""


def main() -> None:
    from everstep.errors import EverstepError

    try:
        app()
    except EverstepError as error:
        click.echo(f"everstep: {error}", err=True)
        sys.exit(2)
