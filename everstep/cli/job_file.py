"""`everstep convert` and `everstep schema`: YAML and JSON go to stdout, notes for people to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from everstep.cli.options import command, say
from everstep.errors import UsageError
from everstep.job_file.load import Loaded, json_schema, load, load_command, load_file, to_yaml
from everstep.settings import setting


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    source: tuple[str, ...] = setting((), "The file", is_argument=True, metavar="FILE")
    changes: tuple[str, ...] = setting(
        (), "Change a key, such as resources.gpu=2; repeatable", option="--set", metavar="KEY=VALUE"
    )


@command(ConvertOptions, no_args_is_help=True)
def convert(options: ConvertOptions) -> None:
    """Convert an ADS, Determined or DLRover job file, or an ElasticDL command, to an Everstep job file.

    FILE is a path, - for stdin, or a command: -- elasticdl train …"""
    loaded = _loaded(options.source, options.changes)
    for note in loaded.notes:
        say(note)
    click.echo(to_yaml(loaded.job), nl=False)


@click.command
def schema() -> None:
    """Print the JSON schema of the job file."""
    click.echo(json.dumps(json_schema(), indent=2))


def _loaded(words: Sequence[str], changes: Sequence[str]) -> Loaded:
    if len(words) != 1:
        return load_command(words, changes)
    (name,) = words
    if name == "-":
        return load(sys.stdin.read(), changes, name="stdin")
    if name == "elasticdl":
        hint = "everstep convert -- elasticdl train …"
        raise UsageError("elasticdl alone is not a job", hint=hint, code="command-incomplete")
    return load_file(Path(name), changes)


COMMANDS = {"convert": convert, "schema": schema}
