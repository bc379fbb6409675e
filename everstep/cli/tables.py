"""Tables and JSON for `status`, `list` and `checkpoint`."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from everstep.cli.printable import printable

_NUMBERS = ("step", "generation", "size", "workers", "rank", "pid")  # columns that are aligned to the right


def table(
    title: str | None,
    columns: Collection[str],
    rows: Iterable[Iterable[object]],
    *,
    caption: str | None = None,
    folds: bool = False,
) -> Table:
    """`folds`: long cells are continued in the next line."""
    made = Table(title=title and _plain(title), caption=caption and _plain(caption), title_justify="left")
    for name in columns:
        made.add_column(name, justify="right" if name in _NUMBERS else "left", overflow="fold" if folds else "ellipsis")
    for row in rows:
        made.add_row(*(_plain(str(cell)) for cell in row))
    return made


def _plain(text: str) -> Text:
    """Names and reasons come from scripts: brackets in them stay brackets."""
    return Text("\n".join(map(printable, text.split("\n"))))


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))
