"""`everstep e preview`: what a search will cost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

from everstep.cli.experiment_link import ExperimentsOptions, link_of
from everstep.cli.options import command
from everstep.cli.printable import counted
from everstep.cli.tables import print_json, table
from everstep.job_file.search_sections import read_search
from everstep.search.preview import FULL, Preview, measured_unit_s, preview
from everstep.settings import setting


@dataclass(frozen=True, kw_only=True)
class PreviewOptions(ExperimentsOptions):
    file: Path = setting(..., "A job file, or Determined's experiment file", is_argument=True, metavar="CONFIG")
    model_dir: Path | None = setting(
        None,
        "Folder with the code; if earlier trials have run it, they give the time per batch",
        is_argument=True,
        metavar="[MODEL_DIR]",
    )
    include: tuple[Path, ...] = setting(
        (), "Another file or folder that belongs to the code; repeatable", also=("-i",), metavar="PATH"
    )
    changes: tuple[str, ...] = setting(
        (),
        "Change a key, such as searcher.max_trials=64; repeatable",
        option="--config",
        also=("--set",),
        metavar="KEY=VALUE",
    )
    batch_s: float | None = setting(
        None,
        "Time on one slot for one batch (or the unit of max_length); default: from earlier trials of MODEL_DIR",
        metavar="SECONDS",
        above=0,
        most=1e9,
    )
    slots: int = setting(1, "Number of slots", metavar="N", least=1)
    json: bool = setting(False, "Print JSON instead of a table")


@command(PreviewOptions, name="preview")
def preview_search(options: PreviewOptions) -> None:
    """Show how many trials would train to each length, with estimated slot-hours and time. Starts nothing.

    The time per batch comes from --batch-s, or from earlier trials of the code in MODEL_DIR."""
    config, space = read_search(options.file, options.changes)
    unit_s = options.batch_s or _measured(options, config.unit)
    found = preview(config, space, batch_s=unit_s, num_slots=options.slots)
    if options.json:
        print_json(found.as_plain())
        return
    rows = [(number, _length(length, found.unit)) for number, length in found.lines]
    Console().print(table(f"{config.name}: {counted(found.num_trials, 'trials')}", ("trials", "train"), rows))
    for line in _summary(found, options.slots):
        click.echo(line)
    if options.batch_s is None and unit_s is not None:
        click.echo(f"time: earlier trials of this code took {unit_s:.3g} s for {counted(1, config.unit)}, on average")


def _measured(options: PreviewOptions, unit: str) -> float | None:
    """The time per unit from earlier trials, if there is a coordinator or a local store to ask."""
    if options.model_dir is None:
        return None
    from everstep.jobs import experiments, new_experiments  # late: a preview alone is quick
    from everstep.pool.local_service import LocalFiles

    if options.coordinator is None and not LocalFiles.of_user().coordinator.directory.is_dir():
        return None
    code = new_experiments.pack(options.model_dir, options.include)
    with link_of(options) as link:
        return measured_unit_s(experiments.measured_results(link, code.sha256, unit))


def _length(length: int | str, unit: str) -> str:
    return "to the end of the script" if length == FULL else f"to {counted(int(length), unit)}"


def _summary(found: Preview, slots: int) -> list[str]:
    lines = [f"at most {counted(found.num_at_once, 'trials')} at once"]
    if found.total_length is not None:
        lines.append(f"{counted(found.total_length, found.unit)} in all")
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
