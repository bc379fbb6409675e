"""TensorBoard and MLflow before the same browser, with one run that has the same points: their best case, since ours
has 10,000 jobs. Both draw a sample of the points, with their default settings, which are their quickest ones."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.jobs import SCRIPTS, until
from benchmarks.page_timing import in_new_window, median
from benchmarks.peers import peer_python
from lab.ports import reserved_port

READY_S = 600.0  # to read a million points
_WRITE = SCRIPTS / "page_peer_data.py"


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    name: str
    command: Callable[[Path, int], Sequence[str]]  # by folder and port
    is_ready: Callable[[httpx.Client, int], bool]  # by number of points
    views: Sequence[str]  # the first one, and that of the plot; empty: the writer prints them
    first: str
    plot: str
    env: Sequence[tuple[str, str]] = ()


def _has_all_points(http: httpx.Client, num_points: int) -> bool:
    reply = http.get("/data/plugin/scalars/scalars", params={"tag": "x", "run": "plotted"})
    points: list[list[float]] = reply.json() if reply.status_code == 200 else []
    return bool(points) and points[-1][1] == num_points - 1


PEERS = (
    Peer(
        name="tensorboard",
        command=lambda folder, port: ("tensorboard.main", "--logdir", str(folder), "--port", str(port)),
        is_ready=_has_all_points,
        views=("/#timeseries", "/#timeseries"),
        first="document.querySelector('scalar-card')",
        plot="document.querySelector('scalar-card-data-table tb-data-table-content-row')",
    ),
    Peer(
        name="mlflow",
        command=lambda folder, port: (
            *("mlflow", "server", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"),
            *("--workers", "1", "--port", str(port)),
        ),
        is_ready=lambda http, _: http.get("/health").status_code == 200,
        views=(),
        first="document.querySelector('.ag-row')",
        plot="document.querySelector('.js-plotly-plot .scatterlayer path, .js-plotly-plot .gl-canvas')",
        env=(("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false"),),
    ),
)


def measure_peers(browser: Any, folder: Path, num_points: int) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for peer in PEERS:
        keys = (f"{peer.name}_first_s", f"{peer.name}_plot_s")
        python = peer_python(peer.name)
        found |= dict.fromkeys(keys)
        if python is not None:
            own = folder / peer.name
            own.mkdir()
            try:
                found |= dict(zip(keys, _measure(peer, python, browser, own, num_points), strict=True))
            except TimeoutError as error:
                print(f"{peer.name}: {error}: no result for it", file=sys.stderr)
    return found


def _measure(peer: Peer, python: str, browser: Any, folder: Path, num_points: int) -> tuple[float, float]:
    write = [python, _WRITE, peer.name, folder, str(num_points)]
    said = subprocess.run(write, check=True, capture_output=True, text=True).stdout
    first, plot = peer.views or said.split()[-2:]
    with _serving(peer, python, folder, num_points) as url:
        return (
            median(lambda: in_new_window(browser, None, url + first, peer.first)[0], f"{peer.name}: first view"),
            median(lambda: in_new_window(browser, None, url + plot, peer.plot)[0], f"{peer.name}: first view: plot"),
        )


@contextlib.contextmanager
def _serving(peer: Peer, python: str, folder: Path, num_points: int) -> Iterator[str]:
    with reserved_port() as port, (folder / "log.txt").open("wb") as log:
        command = [python, "-m", *peer.command(folder, port), "--host", "127.0.0.1"]
        server = subprocess.Popen(
            command, cwd=folder, env=os.environ | dict(peer.env), stdout=log, stderr=log, start_new_session=True
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:

            def is_ready() -> bool:
                with contextlib.suppress(httpx.TransportError):
                    return peer.is_ready(http, num_points)
                return False

            if not until(is_ready, READY_S):
                print((folder / "log.txt").read_text()[-2000:], file=sys.stderr)
                raise SystemExit(f"{peer.name} was not ready after {READY_S:.0f} s")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
