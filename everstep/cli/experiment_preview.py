"""`everstep e preview`: what a search will cost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

from everstep.cli.options import command
from everstep.cli.tables import print_json, table
from everstep.job_file.search_sections import read_search
from everstep.search.preview import FULL, Preview, preview
from everstep.settings import setting


@dataclass(frozen=True, kw_only=True)
class PreviewOptions:
    file: Path = setting(..., "A job file, or Determined's experiment file", is_argument=True, metavar="FILE")
    changes: tuple[str, ...] = setting(
        (), "Change a key, such as searcher.max_trials=64; repeatable", option="--set", metavar="KEY=VALUE"
    )
    batch_s: float | None = setting(
        None, "Time for one batch (or epoch, as max_length counts) on one slot", metavar="SECONDS", above=0
    )
    slots: int = setting(1, "Number of slots", metavar="N", least=1)
    json: bool = setting(False, "Print JSON instead of a table")


@command(PreviewOptions, name="preview")
def preview_search(options: PreviewOptions) -> None:
    """Show how many trials train how long, slot-hours and time, before anything starts."""
    config, space = read_search(options.file, options.changes)
    found = preview(config, space, batch_s=options.batch_s, num_slots=options.slots)
    if options.json:
        print_json(found.as_plain())
        return
    rows = [(number, _length(length, found.unit)) for number, length in found.lines]
    Console().print(table(f"{config.name}: {found.num_trials} trials", ("trials", "train"), rows))
    for line in _summary(found, options.slots):
        click.echo(line)


def _length(length: int | str, unit: str) -> str:
    return "to the end of the script" if length == FULL else f"to {length} {unit}"


def _summary(found: Preview, slots: int) -> list[str]:
    lines = [f"at most {found.num_at_once} trials at once"]
    if found.total_length is not None:
        lines.append(f"{found.total_length} {found.unit} in all")
    if found.slot_hours is not None and found.expected_s is not None and found.first_full_s is not None:
        lines.append(
            f"{found.slot_hours:.2f} slot-hours; on {slots} slot{'s' * (slots > 1)} about {_time(found.expected_s)}, "
            f"the first full trial after {_time(found.first_full_s)}"
        )
    return [*lines, *found.notes]


def _time(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 36_000 else f"{seconds / 3600:.1f} h"


COMMANDS = {"preview": preview_search}
