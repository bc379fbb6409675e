"""`everstep status`: a job as a table, or as JSON; of one that is over, how it ended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from everstep.client.calls import Coordinator
from everstep.errors import CoordinatorUnreachable, Refused, UsageError
from everstep.jobs.node_spec import find_token
from everstep.launcher import run_record
from everstep.launcher.progress import clock
from everstep.launcher.run_record import RunRecord
from everstep.wire import JobView, MetricReport

_LOOK_BACK = 50  # reports, to find the newest of training and of validation


def print_status(url: str | None, job: str | None, token_file: Path | None, log_dir: Path, *, is_json: bool) -> None:
    if url is None:
        _print_run(*_newest(log_dir, job), token_file, is_json=is_json)
    elif job is None:
        raise UsageError("which job?", hint="give --job ID")
    else:
        _print(*_ask(url, job, token_file), is_json=is_json)


def _print_run(directory: Path, record: RunRecord, token_file: Path | None, *, is_json: bool) -> None:
    """Of the coordinator if it answers, else of what the run has left."""
    try:
        if not record.url or record.state in (run_record.FINISHED, run_record.FAILED):
            raise CoordinatorUnreachable("the run is over")
        view, reports = _ask(record.url, record.job, token_file or directory / "token")
    except (CoordinatorUnreachable, Refused):  # refused: by another one, that has the port now
        told = outcome(record, directory)
        print(json.dumps(record.as_json() | {"logs": str(directory)}, indent=2) if is_json else told)
    else:
        _print(view, reports, is_json=is_json)


def outcome(record: RunRecord, directory: Path) -> str:
    """ "circle-1: finished, 224 steps in 0:20; logs in runs/circle-1"."""
    steps = f"{record.num_steps} steps in {clock(record.elapsed_s)}" if record.num_steps else ""
    state = record.shown_state
    told = [f"{record.job}: {state}", "" if record.reason in ("", state) else record.reason, steps]
    ways_out = {
        "killed": "start it with the same line to go on" if record.is_host else f"add --job {record.job} to go on",
        run_record.LEFT: "its coordinator is gone; start it with the same line to go on",
        run_record.RUNNING: "its coordinator does not answer",
    }
    return "; ".join(filter(None, [", ".join(filter(None, told)), ways_out.get(state), f"logs in {directory}"]))


def _ask(url: str, job: str, token_file: Path | None) -> tuple[JobView, Sequence[MetricReport]]:
    with closing(Coordinator(url, find_token(token_file), job)) as coordinator:
        return coordinator.view(), coordinator.metrics(since=-_LOOK_BACK, limit=_LOOK_BACK).reports


def _print(view: JobView, reports: Sequence[MetricReport], *, is_json: bool) -> None:
    if is_json:
        print(json.dumps(as_json(view, reports), indent=2))
        return
    console = Console()
    console.print(render(view))
    if line := newest_line(reports):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def as_json(view: JobView, reports: Sequence[MetricReport]) -> dict[str, Any]:
    newest = {each.kind: {"batches": each.batches, **each.metrics} for each in reports}
    return {
        "job": view.job,
        "state": state_of(view),
        "reason": view.reason,
        "generation": view.generation,
        "workers": [asdict(worker) for worker in view.workers],
        "metrics": newest,
    }


def _newest(log_dir: Path, job: str | None) -> tuple[Path, RunRecord]:
    """The folder of the newest run here, or of the job that was named."""
    found = next(run_record.newest_first(log_dir, job), None)
    if found is None:
        raise UsageError(
            f"no run of {job} in {log_dir}" if job else f"no run in {log_dir}",
            hint="`everstep run SCRIPT` starts one; a job elsewhere: --coordinator URL, --job ID and --token-file; "
            "a submitted one: everstep status ID",
        )
    return found


def state_of(view: JobView) -> str:
    return "finished" if view.is_finished else "stopped" if view.is_stopped else "running"


def render(view: JobView) -> Table:
    title = f"{view.job}: {state_of(view)}, generation {view.generation}"
    table = Table(title=title, caption=view.reason, title_justify="left")
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
