"""Kill a worker in the middle of training, add another one, and compare the weights with those of an undisturbed run.

`make demo`, or `python examples/demo.py`. Everything is real: processes, SIGKILL, sockets, data. The exit code is 0 if
the weights of both runs are equal bit for bit, otherwise 1."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from everstep.testing import Cluster

SCRIPT = Path(__file__).with_name("fashion_mnist.py")
EPOCHS = 4
STEPS = 37 * EPOCHS  # 7,000 samples in global batches of 6 micro-batches of 32
KILL_AT = 24
PAUSE_S = 0.03  # per micro-batch, to give you time to watch; the weights do not depend on it
LOOK_S = 0.1
PATIENCE_S = 120.0

Event = dict[str, Any]


def main() -> int:
    console = Console(highlight=False)
    console.print(f"[bold]Fashion-MNIST: {STEPS} steps of 6 micro-batches on 3 workers. One of them will be killed.")
    console.print("Starting a coordinator and three workers …\n")
    with tempfile.TemporaryDirectory(prefix="everstep-demo-") as folder:
        quiet_events = Path(folder) / "undisturbed.jsonl"
        arguments = ["--epochs", str(EPOCHS), "--pause-s", str(PAUSE_S)]
        with Cluster(SCRIPT, arguments, workers=3) as cluster, Show(console, cluster, quiet_events) as show:
            show.say("w0, w1 and w2 import torch")
            kill_one(cluster, show)
            add_one(cluster, show)
            with undisturbed_run(quiet_events) as other:
                show.say("starting an undisturbed run for comparison: the same script in a single process")
                show.until(lambda: cluster.events("agent.ended"))
                disturbed = cluster.finish().outputs[0]
                show.say("waiting for the undisturbed run")
                show.until(lambda: other.poll() is not None)
        undisturbed = next(event for event in read(quiet_events) if event["event"] == "result")
    return compare(console, disturbed, undisturbed)


def kill_one(cluster: Cluster, show: Show) -> None:
    show.until(lambda: cluster.events("step.committed", step=KILL_AT))
    usual_s = step_seconds(cluster)
    generation = cluster.events("step.committed")[-1]["generation"]
    killed = time.monotonic()
    cluster.kill("w1")
    show.say(f"[bold red]kill -9 w1[/] (pid {cluster.pid('w1')})")

    show.until(lambda: cluster.events("step.committed", generation=lambda number: number > generation))
    first = cluster.events("step.committed", generation=lambda number: number > generation)[0]
    show.say(
        f"[bold green]the survivors committed step {first['step']}, {first['t'] - killed:.3f} s after the kill[/]"
        f" (a step usually takes {usual_s:.3f} s)",
        first["t"],
    )


def add_one(cluster: Cluster, show: Show) -> None:
    show.say("[bold blue]adding a worker[/]; training continues while it imports torch")
    (newcomer,) = cluster.add()
    show.until(lambda: cluster.events("regroup.settled", worker=newcomer) or cluster.events("job.finished"))
    joined = cluster.events("regroup.settled", worker=newcomer)
    if not joined:
        show.say(f"[yellow]{newcomer} was too late: this machine is very busy")
        return
    (sent,) = cluster.events("transfer.started")[-1:]
    show.say(
        f"[bold blue]{newcomer} received the state ({sent['bytes'] / 1e6:.1f} MB) from {sent['worker']}"
        f" and joined at step {joined[0]['step'] + 1}"
    )


def step_seconds(cluster: Cluster) -> float:
    times = [event["t"] for event in cluster.events("step.committed", worker="w0")]
    return median(after - before for before, after in pairwise(times))


@contextmanager
def undisturbed_run(events: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The same script and micro-batches under plain `python`: no coordinator, no recovery."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith("EVERSTEP_")}
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), "--epochs", str(EPOCHS)],
        env=outer | {"EVERSTEP_EVENTS": str(events)},
        stdout=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def compare(console: Console, disturbed: Event, undisturbed: Event) -> int:
    is_equal = bool(disturbed["weights_digest"] == undisturbed["weights_digest"])
    console.print()
    for name, result in {"disturbed": disturbed, "undisturbed": undisturbed}.items():
        console.print(f"{name:12} weights {result['weights_digest'][:32]}  test accuracy {result['accuracy']:.1%}")
    if is_equal:
        console.print("[bold green]The weights are equal, bit for bit.")
    else:
        console.print("[bold red]The weights differ.")
    return 0 if is_equal else 1


class Show:
    """Prints a line for each event; on a terminal also a live table of the workers below them."""

    def __init__(self, console: Console, cluster: Cluster, quiet_events: Path) -> None:
        self._console, self._cluster, self._quiet_events = console, cluster, quiet_events
        self._began = time.monotonic()
        self._num_printed = 0
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> Show:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, sentence: str, t: float | None = None) -> None:
        passed_s = (time.monotonic() if t is None else t) - self._began
        if not self._console.is_terminal:
            self._console.print(f"{passed_s:6.2f} s  {sentence}", soft_wrap=True)
            return
        line = Table.grid(padding=(0, 2, 0, 0))  # a wrapped sentence stays in its column
        line.add_column(no_wrap=True, style="dim")
        line.add_row(f"{passed_s:6.2f} s", sentence)
        self._console.print(line)

    def until(self, condition: Callable[[], object]) -> None:
        """Show events until the condition holds."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            is_over = bool(condition())
            self._print_decisions()
            if self._live is not None:
                self._live.update(self._table(), refresh=True)
            if is_over:
                return
            if time.monotonic() > deadline or self._cluster.events("agent.ended", exit_code=lambda code: code != 0):
                self._cluster.finish(timeout_s=0)  # raises, with the last events and log lines
            time.sleep(LOOK_S)

    def _print_decisions(self) -> None:
        """The coordinator's decisions since the last call, in its own words."""
        decisions = [
            event
            for name in ("generation.formed", "generation.closed", "job.finished", "job.stopped")
            for event in self._cluster.events(name, job=lambda job: job is not None)
        ]
        for event in sorted(decisions, key=lambda event: event["t"])[self._num_printed :]:
            what = f"generation {event['generation']} closed: " if event["event"] == "generation.closed" else ""
            self.say(escape(what + event["reason"]), event["t"])
            self._num_printed += 1

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in ("worker", "", "generation", "rank", "step", "", "loss"):
            table.add_column(column, style="bold" if column == "worker" else "", justify="left", no_wrap=True)
        for event in self._cluster.events("worker.started"):
            table.add_row(*self._row(event["worker"]))
        losses = [event for event in read(self._quiet_events) if event["event"] == "loss"]
        if losses:
            table.add_row("[dim]alone", "[dim]undisturbed", "", "", *_progress(losses[-1]))
        return table

    def _row(self, worker: str) -> list[Any]:
        events = self._cluster.events
        formed, losses = events("generation.formed", worker=worker), events("loss", worker=worker)
        ended = events("worker.exited", worker=worker)
        if ended:
            status = "[green]finished" if ended[0]["exit_code"] == 0 else f"[red]{ended[0]['signal']}"
        else:
            status = "[green]training" if losses else "[yellow]starting"
        place = [str(formed[-1]["generation"]), str(formed[-1]["rank"])] if formed else ["", ""]
        return [worker, status, *place, *(_progress(losses[-1]) if losses else [])]


def _progress(loss: Event) -> list[Any]:
    step = loss["step"] + 1
    return [f"{step:3}", ProgressBar(total=STEPS, completed=step, width=24), f"{loss['loss']:.3f}"]


def read(path: Path) -> list[Event]:
    """The events in a file that may still grow."""
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


if __name__ == "__main__":
    sys.exit(main())
