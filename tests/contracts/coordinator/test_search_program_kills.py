"""Searches whose coordinator or program is killed: no post is applied twice, no trial created twice, no sample that
was kept chosen again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.launcher.local_coordinator import write_token
from everstep.wire.tokens import WORKER, only_for_workers
from lab import search_method
from lab.command import until
from lab.experiments import ToyTrials, patiently
from lab.search_programs import create, custom, post, searched, validate

SCRIPT = Path(search_method.__file__)


@pytest.fixture
def sqlite_server(tmp_path, server_class) -> Iterator:
    write_token(tmp_path / "token")  # one of each role
    server = server_class(tmp_path, str(tmp_path / "store.db"))
    yield server
    server.end()


@pytest.fixture
def server(tmp_path, store_url, server_class) -> Iterator:
    """May be killed and started again."""
    server = server_class(tmp_path, store_url)
    yield server
    server.end()


def test_a_coordinator_that_is_killed_after_each_post_applies_none_twice(server):
    """The program posts again whatever it has no answer to."""
    with Coordinator(server.url, server.token, "none") as people:
        number, seen = people.create_experiment(custom()).experiment, 1
        for name in "abc":
            message = post(seen, create(name, x=name), validate(name, 4), state=f"after {name}")
            people.search_operations(number, message)
            server.kill()
            server.start()
            again = patiently(lambda message=message: people.search_operations(number, message))
            assert again.state == f"after {name}" and again.after_event == seen
            seen = again.last_event
        found = [(each.trial, each.hparams) for each in people.trials(number).trials]
    assert found == [(at, {"x": name}) for at, name in enumerate("abc", 1)]


def test_samples_that_were_kept_are_the_same_after_the_coordinator_died(server):
    pytest.importorskip("optuna")
    killed: set[int] = set()

    def kill(trial: int) -> None:
        if trial in (2, 5, 8) and trial not in killed:
            killed.add(trial)
            server.kill()
            server.start()

    quiet = searched(server, 3, None)
    assert searched(server, 3, None, kill) == quiet and len(killed) == 3


class RunningProgram:
    """`lab/search_method.py` as a process."""

    def __init__(self, server, folder: Path, *gate: object, **env: str) -> None:
        (code := folder / "code").mkdir(exist_ok=True)
        (code / "train.py").write_text("")
        self.reached = folder / "search" / "reached"
        self.reached.unlink(missing_ok=True)
        command = [sys.executable, str(SCRIPT), str(code), str(folder / "search"), *map(str, gate)]
        environment = {**os.environ, "EVERSTEP_COORDINATOR": server.url, "EVERSTEP_TOKEN": server.token, **env}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def kill_at_gate(self) -> None:
        until(self.reached.exists, lambda: f"exit code {self.process.poll()}")
        self.process.kill()
        self.process.communicate()

    def finish(self) -> int:
        """The experiment's number."""
        out, _ = self.process.communicate(timeout=120)
        assert self.process.returncode == 0
        return int(out)


def trained(server, program: RunningProgram, number: int) -> list:
    """Train all trials until the program ends."""
    toys = ToyTrials(server.url, server.token, number)
    try:
        toys.train_all()
        assert program.finish() == number
        return [(each.trial, each.hparams, each.length, each.state) for each in toys.trials()]
    finally:
        toys.close()


WHOLE = [
    (1, {"x": 0}, 4, wire.COMPLETED),
    (2, {"x": 1}, 4, wire.COMPLETED),
    (3, {"x": 2}, 8, wire.COMPLETED),  # the best
]


def only_experiment(server) -> int:
    with Coordinator(server.url, server.token, "none") as people:
        until(lambda: bool(people.experiments().experiments), lambda: "no experiment was created")
        (found,) = people.experiments().experiments
        return found.experiment


@pytest.mark.parametrize("gate", [("create", 1), ("save", 1), ("post", 1), ("save", 3), ("post", 3)], ids=str)
def test_a_search_method_that_is_killed_anywhere_and_started_again_creates_nothing_twice(sqlite_server, tmp_path, gate):
    killed = RunningProgram(sqlite_server, tmp_path, *gate)
    number = only_experiment(sqlite_server)
    toys = ToyTrials(sqlite_server.url, sqlite_server.token, number)

    def is_reached() -> bool:
        for each in toys.trials():
            if each.state not in (*wire.ENDED, wire.WAITING):
                toys.train(each.trial)
        return killed.reached.exists()

    until(is_reached, lambda: f"exit code {killed.process.poll()}")
    toys.close()
    killed.kill_at_gate()
    again = RunningProgram(sqlite_server, tmp_path)
    assert trained(sqlite_server, again, number) == WHOLE
    assert only_experiment(sqlite_server) == number
    assert RunningProgram(sqlite_server, tmp_path).finish() == number  # once more: it is over


def test_a_search_that_runs_inside_a_trial_continues_on_another_machine(sqlite_server, tmp_path):
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    token = only_for_workers(sqlite_server.token)
    assert token.startswith(f"{WORKER}:"), "as trials have it"
    trial = {"EVERSTEP_JOB": "e7-t1", "EVERSTEP_TOKEN": token}
    first = RunningProgram(sqlite_server, tmp_path / "first", "remote", **trial)
    number = only_experiment(sqlite_server)
    toys = ToyTrials(sqlite_server.url, sqlite_server.token, number)
    until(lambda: len(toys.trials()) == 3, lambda: str(toys.view()))
    toys.close()
    first.process.kill()
    first.process.communicate()
    second = RunningProgram(sqlite_server, tmp_path / "second", "remote", **trial)
    assert trained(sqlite_server, second, number) == WHOLE
    assert only_experiment(sqlite_server) == number


def test_two_programs_do_not_share_a_folder(sqlite_server, tmp_path):
    one = RunningProgram(sqlite_server, tmp_path, "post")
    until(one.reached.exists, lambda: f"exit code {one.process.poll()}")
    other = RunningProgram(sqlite_server, tmp_path)
    other.process.communicate(timeout=120)
    assert other.process.returncode != 0
    one.process.kill()
    one.process.communicate()
