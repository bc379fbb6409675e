"""Facts of one thing, a line each; and values that people give as KEY=VALUE."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from everstep.cli.printable import printable_lines
from everstep.errors import UsageError


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Those that are not empty."""
    for name, value in facts:
        if value not in ("", None):
            click.echo(printable_lines(f"{name + ':':14}{value}"))


def shown_metadata(metadata: Mapping[str, Any]) -> str:
    """A line for each name."""
    return "".join(
        f"\n  {name}: {value if isinstance(value, str) else json.dumps(value)}" for name, value in metadata.items()
    )


def parse_metadata(pairs: Sequence[str], text: str | None = None) -> dict[str, Any]:
    """`pairs`: KEY=VALUE, where a value that is JSON is read as such. `text`: a JSON object, below them."""
    found = {} if text is None else _object(text)
    for each in pairs:
        key, equals, value = each.partition("=")
        if not key or not equals:
            raise UsageError(f"not KEY=VALUE: {each!r}", hint="such as accuracy=0.97", code="metadata-not-a-pair")
        found[key] = _value(value)
    return found


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(
            f"the metadata is not JSON: {error}", hint="such as '{\"accuracy\": 0.97}'", code="metadata-not-json"
        ) from None
    if not isinstance(found, dict):
        hint = "such as '{\"accuracy\": 0.97}'"
        raise UsageError("the metadata is not a JSON object", hint=hint, code="metadata-not-an-object")
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
