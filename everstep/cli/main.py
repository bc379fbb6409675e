"""The `everstep` command: its subcommands, each in a module that is imported when the subcommand is called.

`--help` must answer at once on a login node, so nothing heavy is imported here."""

from __future__ import annotations

import gc
import sys

import click

import everstep
from everstep.cli.lazy_group import LazyGroup

_HELP_NAMES = ["-h", "--help"]
_COMMANDS = {  # name: (module, one line for --help; "" hides it)
    "run": ("run", "Train: run SCRIPT on this machine, or a job file (-f) on any platform."),
    "join": ("run", "Add this node to a running job."),
    "status": ("status", "Show a job, or how it ended."),
    "metrics": ("metrics", "Show what a job has reported, as a table, CSV or JSON."),
    "page": ("page", "Open the page of a job, running or over, in a browser."),
    "experiment": ("experiment", "Search for hyperparameters: create, watch and change experiments (short: e)."),
    "pool": ("pool", "Offer this machine's slots to trials, and show pools."),
    "agent": ("agent", "List the nodes of pools; drain, enable and disable them."),
    "queue": ("queue", "Show which experiments wait for slots, and why; change their order."),
    "doctor": ("doctor", "Check whether this machine, or every node, is ready to train."),
    "trial": ("verb_groups", "Show one trial, its output and its checkpoints."),
    "checkpoint": ("verb_groups", "List, show, verify, export, download and delete checkpoints."),
    "model": ("verb_groups", "Register checkpoints as versions of models."),
    "template": ("verb_groups", "Keep pieces of configuration for experiments."),
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
    "t": ("verb_groups", ""),
    "c": ("verb_groups", ""),
    "m": ("verb_groups", ""),
    "tpl": ("verb_groups", ""),
    "trial-node": ("pool", ""),
    "pool-nodes": ("pool", ""),
    "local-service": ("pool", ""),
    "node": ("run", ""),
    "entry": ("run", ""),
    "coordinate": ("run", ""),
}


def _with_dashes(name: str) -> str:
    """torchrun spells its options with underscores; both work."""
    return name.replace("_", "-")


@click.group(
    name="everstep",
    cls=LazyGroup,
    table=_COMMANDS,
    context_settings={"token_normalize_func": _with_dashes, "help_option_names": _HELP_NAMES},
    no_args_is_help=True,
)
@click.version_option(everstep.__version__, message="everstep %(version)s")
def app() -> None:
    """Train PyTorch models on machines that come and go."""


def main() -> None:
    gc.set_threshold(50_000)  # imports make many objects, and no garbage
    from everstep.errors import EverstepError, Refused

    try:
        app()
    except EverstepError as error:
        from everstep.cli.options import say

        # People want the coordinator's sentence; the call is for logs.
        told = error.sentence if isinstance(error, Refused) else error.message
        say(f"{told}\n  HINT: {error.hint}" if error.hint else told)
        sys.exit(2)
