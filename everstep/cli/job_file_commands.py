"""`everstep convert` and `everstep schema`: YAML and JSON on stdout, what people should know on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from everstep.errors import UsageError
from everstep.job_file.load import Loaded, json_schema, load, load_command, load_file, to_yaml


def convert(words: Sequence[str], changes: Sequence[str]) -> int:
    loaded = _loaded(words, changes)
    for note in loaded.notes:
        typer.echo(f"everstep: {note}", err=True)
    typer.echo(to_yaml(loaded.job), nl=False)
    return 0


def print_schema() -> int:
    typer.echo(json.dumps(json_schema(), indent=2))
    return 0


def _loaded(words: Sequence[str], changes: Sequence[str]) -> Loaded:
    if len(words) > 1:
        return load_command(words, changes)
    (name,) = words
    if name == "-":
        return load(sys.stdin.read(), changes, name="stdin")
    if name == "elasticdl":
        raise UsageError("elasticdl alone is no job", hint="everstep convert -- elasticdl train …")
    return load_file(Path(name), changes)
