"""What only the local platform can be asked: setup lines, time limits, and the death of its coordinator."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.command import until
from lab.processes import processes_of
from lab.submitted import Submitted

LONG = ["train.py", "--steps", "100000", "--pace", "0.05"]


@pytest.fixture
def submit(tmp_path: Path) -> Iterator[Callable[..., Submitted]]:
    started: list[Submitted] = []

    def submit(**job: Any) -> Submitted:
        started.append(Submitted(tmp_path, job, {}))
        return started[-1]

    yield submit
    for each in started:
        each.close()


def test_what_setup_lines_set_reaches_the_workers(submit: Callable[..., Submitted]) -> None:
    job = submit(
        entrypoint="train.py --steps 2",
        env={"GREETING": "me"},
        setup=['greet() { echo "it\'s $1"; }', 'export GREETING="$(greet $GREETING)"'],
    )
    assert 'greeting "it\'s me"' in job.finish()


def test_a_job_ends_when_its_time_is_up(submit: Callable[..., Submitted]) -> None:
    job = submit(entrypoint=LONG, time_limit="30s", checkpoint={"grace": "5s"})
    said = job.type("watch", job.id, is_good=False)
    assert "asked to end by SIGTERM" in said or "SIGTERM: workers have 5 s to end" in said
    (row,) = json.loads(job.type("list", "--json"))
    assert (row["state"], row["reason"]) == ("failed", "the time limit of 30 s is reached")
    until(lambda: not processes_of(job.id), lambda: f"left behind: {processes_of(job.id)}")


def test_a_killed_coordinator_takes_its_nodes_along_and_that_is_said(submit: Callable[..., Submitted]) -> None:
    job = submit(entrypoint=LONG)
    job.wait_said(r"trains with 1 worker ")
    record = json.loads((job.folder / "home" / "submitted" / f"{job.id}.json").read_text())
    os.kill(record["natives"]["pid"], signal.SIGKILL)
    until(lambda: not processes_of(job.id), lambda: f"left behind: {processes_of(job.id)}")
    assert "its coordinator (pid" in job.type("list", "--json")
    job.type("watch", job.id, is_good=False)


def test_only_you_can_read_a_jobs_files(submit: Callable[..., Submitted]) -> None:
    job = submit(entrypoint="train.py --steps 2", secrets={"PASSWORD": "hunter2"})
    job.finish()
    folder = Path(job.info["everstep"]["folder"])
    assert folder.stat().st_mode & 0o077 == 0
    holders = [path for path in folder.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]
    assert holders == []  # that of the secrets is gone with the job
