"""`everstep status`: show a job as a table or as JSON, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from everstep import env
from everstep.cli.options import command
from everstep.cli.printable import printable
from everstep.cli.tables import print_json, table
from everstep.client.calls import Coordinator
from everstep.errors import CoordinatorUnreachable, Refused, UsageError
from everstep.jobs.options import CoordinatorOptions
from everstep.jobs.tokens import find_token
from everstep.launcher import run_record
from everstep.launcher.progress import clock
from everstep.launcher.run_record import RunRecord
from everstep.record.series_pages import all_series
from everstep.settings import setting
from everstep.wire import JobView, SeriesView

_POSITION = ("epochs", "records")  # of training: where it is, not what it found


@dataclass(frozen=True, kw_only=True)
class StatusOptions(CoordinatorOptions):
    id: str | None = setting(None, "A run or a submitted job", is_argument=True, metavar="[ID]")
    coordinator: str | None = setting(
        None,
        "URL of the coordinator; default: that of the newest run in the log folder",
        metavar="URL",
        variables=(env.COORDINATOR,),
    )
    job: str | None = setting(
        None, "ID of the job; default: the newest run in the log folder", metavar="ID", variables=(env.JOB,)
    )
    log_dir: Path = setting(Path("runs"), "Folder with the logs of runs", metavar="DIR", variables=("PET_LOG_DIR",))
    json: bool = setting(False, "Print JSON instead of a table")


@command(StatusOptions)
def status(options: StatusOptions) -> None:
    """Show a job: its workers and the coordinator's last decision, or how it ended. Without options: the newest job of
    this folder.

    ID is that of a run in the log folder, or of a submitted job: its ID here, its ID on the platform, or its name."""
    if options.id is not None and (run := next(run_record.newest_first(options.log_dir, options.id), None)):
        _print_run(*run, options.token_file, is_json=options.json)
    elif options.id is not None:
        from everstep.cli.submitted import print_submitted

        print_submitted(options.id, is_json=options.json)
    elif options.coordinator is None:
        _print_run(*_newest(options.log_dir, options.job), options.token_file, is_json=options.json)
    elif options.job is None:
        raise UsageError("which job?", hint="give --job ID", code="job-not-named")
    else:
        _print(*_ask(options.coordinator, options.job, options.token_file), is_json=options.json)


def _print_run(directory: Path, record: RunRecord, token_file: Path | None, *, is_json: bool) -> None:
    """From the coordinator if it answers, otherwise from the files of the run."""
    try:
        if not record.url or record.state in (run_record.FINISHED, run_record.FAILED):
            raise CoordinatorUnreachable("the run is over", code="run-over")
        view, series = _ask(record.url, record.job, token_file or directory / "token")
    except (CoordinatorUnreachable, Refused):  # refused: by another coordinator, which has the port now
        if is_json:
            print_json(record.as_json() | {"logs": str(directory)})
        else:
            print(outcome(record, directory))
    else:
        _print(view, series, is_json=is_json)


def outcome(record: RunRecord, directory: Path) -> str:
    """ "circle-1: finished, 224 steps in 0:20; logs in runs/circle-1"."""
    steps = f"{record.num_steps} steps in {clock(record.elapsed_s)}" if record.num_steps else ""
    state = record.shown_state
    parts = [f"{record.job}: {state}", "" if record.reason in ("", state) else record.reason, steps]
    ways_out = {
        "killed": "run the same command to continue" if record.is_host else f"add --job {record.job} to continue",
        run_record.LEFT: "its coordinator is gone; run the same command to continue",
        run_record.RUNNING: "its coordinator does not answer",
    }
    return "; ".join(filter(None, [", ".join(filter(None, parts)), ways_out.get(state), f"logs in {directory}"]))


def _ask(url: str, job: str, token_file: Path | None) -> tuple[JobView, Sequence[SeriesView]]:
    with closing(Coordinator(url, find_token(token_file), job)) as coordinator:
        return coordinator.view(), list(all_series(coordinator, is_own=True))


def _print(view: JobView, series: Sequence[SeriesView], *, is_json: bool) -> None:
    if is_json:
        print_json(as_json(view, series))
    else:
        print_training(view, series)


def print_training(view: JobView, series: Sequence[SeriesView]) -> None:
    console = Console()
    console.print(render(view))
    if line := newest_line(series):
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)


def as_json(view: JobView, series: Sequence[SeriesView]) -> dict[str, Any]:
    return {
        "job": view.job,
        "state": state_of(view),
        "reason": view.reason,
        "generation": view.generation,
        "workers": [asdict(worker) for worker in view.workers],
        "metrics": {each.name: {"step": each.last_step, "value": each.last} for each in series},
    }


def _newest(log_dir: Path, job: str | None) -> tuple[Path, RunRecord]:
    """The folder of the newest run here, or of the named job."""
    found = next(run_record.newest_first(log_dir, job), None)
    if found is None:
        hint = (
            "`everstep run SCRIPT` starts one; a job elsewhere: --coordinator URL, --job ID and --token-file; "
            "a submitted job: everstep status ID (everstep list shows them)"
        )
        raise UsageError(f"no run{f' of {job}' if job else ''} in {log_dir}", hint=hint, code="run-not-found")
    return found


def state_of(view: JobView) -> str:
    return "finished" if view.is_finished else "stopped" if view.is_stopped else "running"


def render(view: JobView) -> Table:
    columns = ("worker", "status", "rank", "step", "generation", "agent", "pid", "reason")
    rows = []
    for each in view.workers:
        facts = {name: getattr(each, name) for name in columns}
        rows.append((facts | {"rank": each.rank if each.rank >= 0 else ""}).values())
    title = f"{view.job}: {state_of(view)}, generation {view.generation}"
    return table(title, columns, rows, caption=view.reason)


def newest_line(series: Sequence[SeriesView]) -> str:
    """ "training at step 300: loss 0.2145 · validation at step 250: accuracy 0.9312"; empty if there are none."""
    return " · ".join(filter(None, (_newest_of(kind, series) for kind in ("", "training", "validation"))))


def _newest_of(kind: str, series: Sequence[SeriesView]) -> str:
    """ "" is the kind of what scripts report."""
    named = [(each.name.removeprefix(f"{kind}/"), each) for each in series if each.name.rpartition("/")[0] == kind]
    shown = [(name, each) for name, each in named if name not in _POSITION or kind != "training"]
    if not shown:
        return ""
    step = max(each.last_step for _, each in shown)
    numbers = ", ".join(f"{name} {float(each.last):.6g}" for name, each in shown if each.last_step == step)
    return f"{kind or 'reported'} at step {step}: {numbers}"


COMMANDS = {"status": status}
