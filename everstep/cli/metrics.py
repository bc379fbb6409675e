"""`everstep metrics`: the series of a job as a table, and the points of one as CSV or JSON."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console

from everstep.cli.options import command, say
from everstep.cli.printable import printable
from everstep.cli.tables import print_json, table
from everstep.client.calls import Coordinator
from everstep.errors import UsageError
from everstep.jobs import submitted
from everstep.jobs.find_record import find_record, is_record
from everstep.jobs.job_folder import answers, coordinator_of_folder
from everstep.jobs.options import CoordinatorOptions
from everstep.jobs.tokens import find_token
from everstep.launcher import run_record
from everstep.record.about import METRICS
from everstep.record.series_pages import SeriesPages, all_series
from everstep.settings import setting
from everstep.wire import SeriesView, SeriesWindow
from everstep.wire.bounds import MAX_INT
from everstep.wire.metrics import MOST_COLUMNS, SYSTEM


class SeriesSource(SeriesPages, Protocol):
    def series_window(
        self, series: int, *, start: int = 0, stop: int = MAX_INT, columns: int = 1000, is_full: bool = False
    ) -> SeriesWindow: ...


_MOST_NAMED = 10  # series, in a hint
_WIDEST = 1000
_POINTS = {"step": "first_steps", "time": "first_times", "value": "firsts"}  # columns of CSV, and where they are
_SUMMED_UP = {
    "first_step": "first_steps",
    "first_time": "first_times",
    "first": "firsts",
    "last_step": "last_steps",
    "last_time": "last_times",
    "last": "lasts",
    "min": "least",
    "max": "most",
    "points": "counts",
}


@dataclass(frozen=True, kw_only=True)
class MetricsOptions(CoordinatorOptions):
    id: str = setting(..., "A run or a submitted job", is_argument=True, metavar="ID")
    name: str | None = setting(None, "A series, such as training/loss", is_argument=True, metavar="[NAME]")
    csv: bool = setting(False, "Print CSV; with NAME, this is the default")
    json: bool = setting(False, "Print JSON")
    start: int = setting(0, "Start at this step", option="--from", metavar="STEP", least=0)
    stop: int = setting(MAX_INT, "Stop before this step", option="--to", metavar="STEP", least=0, shows_default=False)
    points: int | None = setting(
        None,
        "Summarize the points for a plot with this many columns, instead of printing all of them",
        metavar="N",
        least=1,
        most=MOST_COLUMNS,
    )
    log_dir: Path = setting(Path("runs"), "Folder with the logs of runs", metavar="DIR", variables=("PET_LOG_DIR",))


@command(MetricsOptions, no_args_is_help=True)
def metrics(options: MetricsOptions) -> None:
    """Show a job's metrics: all series with their last, minimum and maximum value, or the points of one series.

    ID is a run in the log folder, a submitted job, or the folder of a job or a record. With --coordinator, ID is a job
    of that coordinator."""
    with _record_of(options) as record:
        if options.name is None:
            _print_series(list(all_series(record)), options)
        else:
            _print_points(record, find_series(record, options.name), options)


def find_series(record: SeriesSource, name: str) -> SeriesView:
    names = []
    for each in all_series(record):
        if each.name == name:
            return each
        names.append(each.name)
    known = ", ".join(sorted(names, key=_own_first)[:_MOST_NAMED])
    more = f", and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    hint = f"there are {known}{more}" if known else "none yet"
    raise UsageError(f"there is no series {name!r}", hint=hint, code="series-not-found")


def _own_first(name: str) -> tuple[bool, str]:
    """What the job itself has reported, before its machines."""
    return name.startswith(SYSTEM), name


@contextmanager
def _record_of(options: MetricsOptions) -> Iterator[SeriesSource]:
    """The coordinator if it answers, otherwise the files of the run."""
    if options.coordinator is not None:
        with closing(Coordinator(options.coordinator, find_token(options.token_file), options.id)) as coordinator:
            yield coordinator
        return
    with _coordinator_of(options) as live:
        if live is not None and answers(live):
            yield live
            return
    from everstep.coordinator.finished_record import open_record

    with open_record(find_record(options.id, log_dir=options.log_dir, files=[METRICS])) as finished:
        if unended := finished.lacks_end():
            say(f"the metrics of job {finished.job}, {unended}")
        yield finished


@contextmanager
def _coordinator_of(options: MetricsOptions) -> Iterator[Coordinator | None]:
    """None: of a job that is over."""
    run = next(run_record.newest_first(options.log_dir, options.id), None)
    if run is not None or is_record(Path(options.id)):
        with coordinator_of_folder(run[0] if run else Path(options.id), options.token_file) as coordinator:
            yield coordinator
    else:
        with submitted.coordinator_of(submitted.find(options.id)) as found:
            yield found


def _print_series(found: list[SeriesView], options: MetricsOptions) -> None:
    if options.json:
        print_json([asdict(each) for each in found])
        return
    rows = [
        (
            printable(each.name),
            f"{float(each.last):.6g}",
            _number(each.least),
            _number(each.most),
            each.count,
            each.last_step,
        )
        for each in sorted(found, key=lambda each: _own_first(each.name))
    ]
    columns = ("name", "last", "min", "max", "points", "step")
    if options.csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows([columns, *rows])
    elif rows:
        width = None if sys.stdout.isatty() else _WIDEST  # a pipe has no width: programs need whole names
        Console(width=width).print(table(None, columns, rows, folds=True))
    else:
        print(f"{options.id} has not reported any metrics")


def _print_points(record: SeriesSource, series: SeriesView, options: MetricsOptions) -> None:
    windows = _windows(record, series, options)
    if options.json:
        print_json([asdict(each) for each in windows])
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    has_head = False
    for window in windows:
        columns = _SUMMED_UP if window.counts else _POINTS
        if not has_head:
            writer.writerow(columns)
            has_head = True
        writer.writerows(zip(*(getattr(window, name) for name in columns.values()), strict=True))


def _windows(record: SeriesSource, series: SeriesView, options: MetricsOptions) -> Iterator[SeriesWindow]:
    if options.points is not None:
        yield record.series_window(series.series, start=options.start, stop=options.stop, columns=options.points)
        return
    start = max(options.start, series.first_step)
    while start < min(options.stop, series.last_step + 1):
        window = record.series_window(series.series, start=start, stop=options.stop, is_full=True)
        yield window
        start = window.stop


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


COMMANDS = {"metrics": metrics}
