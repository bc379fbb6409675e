"""`everstep status`: a job as a table."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from rich.console import Console
from rich.table import Table

from everstep.cli.node import find_token
from everstep.client import Coordinator
from everstep.wire import JobView


def print_status(url: str, job: str, token_file: Path | None) -> None:
    with closing(Coordinator(url, find_token(token_file), job)) as coordinator:
        Console().print(render(coordinator.view()))


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
