"""A run that hosts the coordinator is killed or interrupted while another node goes on: the same line takes the job up,
and `everstep status` knows it at every moment. Workers are plain programs: nothing here is about training."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab import nest
from lab.command import CALM_OPTIONS, EVERSTEP, Command, everstep
from lab.ports import reserved_port
from lab.stage import SCRIPTS

PATIENCE = ("--max-restarts=5", "--lease-s=6", "--undecided-s=0.3")
UNTIL_GO = "while [ ! -e ../go ]; do sleep 0.05; done"


class Meeting:
    """Two folders of one machine, or the same one twice, and the one line that is typed in both."""

    def __init__(self, folder: Path, port: int, guest: str = "guest") -> None:
        self._port, self.folders, self.typed = port, [folder / "host", folder / guest], list[Command]()
        self._env = {"HOME": str(folder)}
        for each in self.folders:
            each.mkdir(exist_ok=True)

    def run(self, number: int) -> Command:
        is_host = f"is_host={number == 0}," if self.folders[0] != self.folders[1] else ""
        line = ["run", "--nnodes=1:2", f"--rdzv-endpoint=127.0.0.1:{self._port}", *PATIENCE]
        line.append(f"--rdzv-conf={is_host}last_call_timeout=0")
        words = [*EVERSTEP, *line, "--no-python", "sh", "-c", UNTIL_GO]
        self.typed.append(Command(*words, folder=self.folders[number], others=self.typed, **self._env))
        return self.typed[-1]

    def run_both(self) -> tuple[Command, Command]:
        """Host and guest, once each has a worker. Either may have w0: the first node to arrive gets it."""
        host, guest = self.run(0), self.run(1)
        host.wait_said(r"w\d started")
        guest.wait_said(r"w\d started")
        return host, guest

    def status(self, number: int) -> str:
        done = everstep("status", folder=self.folders[number], **self._env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def told(self, number: int) -> dict[str, Any]:
        done = everstep("status", "--json", folder=self.folders[number], **self._env)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))


@contextmanager
def meet(folder: Path, guest: str = "guest") -> Iterator[Meeting]:
    with reserved_port() as port:
        meeting = Meeting(folder, port, guest)
        try:
            yield meeting
        finally:
            for each in meeting.typed:
                each.end()


@pytest.fixture
def meeting(tmp_path: Path) -> Iterator[Meeting]:
    with meet(tmp_path) as meeting:
        yield meeting


def test_a_killed_host_goes_on_with_the_same_line(meeting: Meeting, tmp_path: Path) -> None:
    host, guest = meeting.run_both()
    job = meeting.told(0)["job"]
    assert (meeting.told(1)["job"], meeting.told(1)["state"]) == (job, "running")
    (token,) = [path.read_text() for path in meeting.folders[0].glob("runs/*/token")]

    os.kill(host.process.pid, signal.SIGKILL)
    guest.wait_said("the coordinator does not answer; retrying")
    assert f"{job}: killed; run the same command to continue" in meeting.status(0)
    host = meeting.run(0)
    host.wait_said(f"job {job} was not over: continuing it")
    guest.wait_said("the coordinator answers again")
    assert [path.read_text() for path in meeting.folders[0].glob("runs/*/token")] == [token]
    host.wait_said(r"w\d started")

    (tmp_path / "go").touch()
    host.finish()
    guest.finish()
    for number in (0, 1):
        assert f"{job}: finished" in meeting.status(number)
        assert (meeting.told(number)["state"], meeting.told(number)["exit_code"]) == ("finished", 0)


def test_a_killed_host_goes_on_in_a_folder_that_the_other_node_uses_too(tmp_path: Path) -> None:
    with meet(tmp_path, guest="host") as meeting:
        host = meeting.run(0)
        host.wait_said(r"w\d started")
        job = meeting.told(0)["job"]
        guest = meeting.run(1)
        guest.wait_said(r"w\d started")
        os.kill(host.process.pid, signal.SIGKILL)
        guest.wait_said("the coordinator does not answer; retrying")
        meeting.run(0).wait_said(f"job {job} was not over: continuing it")
        guest.wait_said("the coordinator answers again")


def test_who_interrupts_the_host_is_told_how_the_others_go_on(meeting: Meeting) -> None:
    host, guest = meeting.run_both()
    host.signal(signal.SIGTERM)
    said = host.finish(is_good=False)
    assert "type the same line here again, or press Ctrl-C there" in said

    guest.wait_said("run the same command again on the node that hosted it to continue; or press Ctrl-C to end here")
    guest.signal(signal.SIGTERM)
    assert guest.exit_code() == 128 + signal.SIGTERM


def test_who_waits_says_why_on_the_console(tmp_path: Path) -> None:
    options = ["--nproc-per-node=2", "--min-workers=3", *CALM_OPTIONS, *nest.AGENT_OPTIONS]
    with Command(*EVERSTEP, "run", *options, SCRIPTS / "train.py", folder=tmp_path) as run:
        # One that waits for long for the other says so first.
        told = run.wait_said(r"everstep: waiting: (2 workers .* at least 3)")[1]
        run.signal(signal.SIGTERM)
        run.exit_code()
        assert run.said.count(told) == 1  # not once for each worker
