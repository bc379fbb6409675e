"""The `everstep` command: names and help of the subcommands. What they do is imported when one is called.

`--help` must answer at once on a login node, so nothing heavy is imported at the top."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    name="everstep",
    help="Train PyTorch models on machines that come and go.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"token_normalize_func": lambda name: name.replace("_", "-")},  # torchrun's spelling works too
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from everstep import __version__

        typer.echo(f"everstep {__version__}")
        raise typer.Exit


@app.callback()
def everstep(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train PyTorch models on machines that come and go."""


@app.command()
def run() -> None:
    """Train on this machine: start workers, keep them alive."""


def main() -> None:
    app()
