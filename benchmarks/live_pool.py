"""A coordinator and a node with slots, as real processes, for benchmarks."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep import env, wire
from everstep.jobs import experiments, new_experiments
from everstep.jobs.coordinator_link import CoordinatorLink

READY_S = 300.0
POLL_S = 0.2
EVENTS = "events.jsonl"


@dataclass(frozen=True, kw_only=True, slots=True)
class LivePool:
    link: CoordinatorLink
    folder: Path

    @property
    def events(self) -> Path:
        """Of all its processes."""
        return self.folder / EVENTS

    def create(
        self,
        scripts: Path,
        content: Mapping[str, Any],
        change: Callable[[wire.ExperimentSpec], wire.ExperimentSpec] = lambda spec: spec,
    ) -> int:
        prepared = new_experiments.prepare(None, scripts, content=content)
        new_experiments.upload(self.link, prepared.code)
        return new_experiments.begin(self.link, change(prepared.spec)).experiment

    def wait(self, number: int) -> wire.ExperimentView:
        view = experiments.wait(self.link, number, POLL_S)
        if view.state != wire.COMPLETED or view.best is None:
            raise RuntimeError(f"experiment {number} is {view.state}: {view.reason}")
        return view


@contextmanager
def open_pool(num_slots: int) -> Iterator[LivePool]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="everstep-bench-")))
        token, ready = folder / "token", folder / "url"
        serve = ("serve", "--port", "0", "--store", folder / "store.db", "--token-file", token, "--ready-file", ready)
        stack.callback(_end, _start(folder, *serve))
        url = _await(ready)
        join = ("pool", "join", "--coordinator", url, "--token-file", token, "--slots", num_slots)
        stack.callback(_end, _start(folder, *join))
        link = stack.enter_context(CoordinatorLink(lambda: (url, env.read_token(token))))
        yield LivePool(link=link, folder=folder)


@contextmanager
def open_coordinator(*, store: str = "") -> Iterator[tuple[str, str, int]]:
    """Its URL, token and process. `store`: default: SQLite in a temporary folder."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="everstep-bench-")))
        token, ready = folder / "token", folder / "url"
        kept_in = ("--store", store or folder / "store.db")
        process = _start(folder, "serve", "--port", "0", *kept_in, "--token-file", token, "--ready-file", ready)
        stack.callback(_end, process)
        yield _await(ready), env.read_token(token), process.pid


def _start(folder: Path, *command: object) -> subprocess.Popen[bytes]:
    with (folder / "log").open("ab") as log:
        given = [sys.executable, "-m", "everstep", *map(str, command)]
        return subprocess.Popen(given, stdout=log, stderr=log, cwd=folder, env=_environment(folder))


def _environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "EVERSTEP_HOME": str(folder), "EVERSTEP_EVENTS": str(folder / EVENTS)}


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(60)


def _await(path: Path) -> str:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if path.exists() and (text := path.read_text().strip()):
            return text
        time.sleep(0.05)
    raise TimeoutError(f"{path} did not appear within {READY_S:g} s")
