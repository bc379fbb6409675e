"""Tables and JSON for `status`, `list` and `checkpoint`."""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Iterable, Sequence
from typing import Any, Literal

import click
from rich.table import Table
from rich.text import Text

from everstep.cli.printable import printable_lines

_NUMBERS = ("step", "generation", "size", "workers", "rank", "pid")  # columns that are aligned to the right
_BORDER = 3  # of a cell: a line, and two spaces
_LEAST_FOLDED, _MOST_FOLDED = 16, 28  # columns of a text that is continued in the next line


def table(
    title: str | None,
    columns: Collection[str],
    rows: Iterable[Iterable[object]],
    *,
    caption: str | None = None,
    folds: bool = False,
    whole: Container[str] = (),
) -> Table:
    """`folds`: long cells are continued in the next line, but for those of the columns in `whole`."""
    made = Table(
        title=title and _plain(title),
        caption=caption and _plain(caption),
        title_justify="left",
        caption_justify="left",
    )
    for name in columns:
        justify: Literal["left", "right"] = "right" if name in _NUMBERS else "left"
        made.add_column(name, justify=justify, overflow="fold" if folds else "ellipsis", no_wrap=name in whole)
    for row in rows:
        made.add_row(*(_plain(str(cell)) for cell in row))
    return made


def fitting(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    width: int,
    *,
    give_way: Sequence[str],
    folded: Collection[str],
) -> list[int]:
    """The columns, by number, that a terminal of this width shows. Those in `give_way` go, the first one first, until
    the others have room; a column in `folded` needs only its longest word."""
    needs = [
        _needed([name, *(str(row[number]) for row in rows)], name in folded) for number, name in enumerate(columns)
    ]
    kept = list(range(len(columns)))
    for name in give_way:
        if sum(needs[number] + _BORDER for number in kept) < width:
            break
        kept.remove(columns.index(name))
    return kept


def _needed(cells: Sequence[str], folds: bool) -> int:
    longest = max(map(len, cells))
    if not folds:
        return longest
    word = max((len(word) for cell in cells for word in cell.split()), default=0)
    return min(longest, max(_LEAST_FOLDED, min(_MOST_FOLDED, word)))


def _plain(text: str) -> Text:
    """Names and reasons come from scripts: brackets in them stay brackets."""
    return Text(printable_lines(text))


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))
