"""`everstep status`: a job as a table."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rich.console import Console
from rich.table import Table

from everstep.cli.node import find_token
from everstep.client import Coordinator
from everstep.errors import CoordinatorUnreachable, UsageError
from everstep.wire import JobView, MetricReport

_LOOK_BACK = 50  # reports, to find the newest of training and of validation


def print_status(url: str | None, job: str | None, token_file: Path | None, log_dir: Path) -> None:
    if url is None:
        _print_newest(_newest(log_dir, job), token_file)
    elif job is None:
        raise UsageError("which job?", hint="give --job ID")
    else:
        _print(url, job, token_file)


def _print_newest(directory: Path, token_file: Path | None) -> None:
    try:
        _print((directory / "coordinator.url").read_text().strip(), directory.name, token_file or directory / "token")
    except CoordinatorUnreachable as error:
        raise UsageError(
            f"job {directory.name} is over, or its coordinator is gone: {error.message}",
            hint=f"its logs are in {directory}; submitted jobs are shown by `everstep list` and `everstep status ID`",
        ) from None


def _print(url: str, job: str, token_file: Path | None) -> None:
    with closing(Coordinator(url, find_token(token_file), job)) as coordinator:
        console = Console()
        console.print(render(coordinator.view()))
        if line := newest_line(coordinator.metrics(since=-_LOOK_BACK, limit=_LOOK_BACK).reports):
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def _newest(log_dir: Path, job: str | None) -> Path:
    """The folder of the newest run that has a coordinator of its own, or of the job that was named."""
    found = sorted(log_dir.glob(f"{job or '*'}/coordinator.url"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise UsageError(
            f"no run with a coordinator of its own in {log_dir}",
            hint="`everstep run SCRIPT` starts one; a job elsewhere: --coordinator URL, --job ID and --token-file; "
            "a submitted one: everstep status ID",
        )
    return found[-1].parent


def render(view: JobView) -> Table:
    state = "finished" if view.is_finished else "stopped" if view.is_stopped else "running"
    table = Table(title=f"{view.job}: {state}, generation {view.generation}", caption=view.reason, title_justify="left")
    for column in ("worker", "status", "rank", "step", "generation", "agent", "pid", "reason"):
        table.add_column(column, justify="right" if column in ("rank", "step", "generation", "pid") else "left")
    for worker in view.workers:
        rank = str(worker.rank) if worker.rank >= 0 else ""
        table.add_row(
            worker.worker,
            worker.status,
            rank,
            str(worker.step),
            str(worker.generation),
            worker.agent,
            str(worker.pid),
            worker.reason,
        )
    return table


def newest_line(reports: Sequence[MetricReport]) -> str:
    """ "training at batch 300: loss 0.2145 · validation at batch 250: accuracy 0.9312"; empty if there are none."""
    newest = {each.kind: each for each in reports}
    return " · ".join(
        f"{kind} at batch {newest[kind].batches}: {_numbers(newest[kind])}"
        for kind in ("training", "validation")
        if kind in newest
    )


def _numbers(report: MetricReport) -> str:
    numbers = {name: value for name, value in report.metrics.items() if isinstance(value, int | float)}
    return ", ".join(f"{name} {value:.6g}" for name, value in numbers.items()) or "no numbers"
