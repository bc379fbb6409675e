"""Ctrl-C at moments that a person rarely hits: just after an experiment has begun, and just after its end. And during
`everstep e wait`."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep.cli.experiment_follow import follow
from everstep.cli.experiment_logs import follow_first_trial
from everstep.jobs.coordinator_link import CoordinatorLink
from lab.command import EVERSTEP, Command
from lab.experiments import ToyTrials, spec


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """A command that was interrupted leaves SIGHUP ignored until its process ends, and this process goes on."""
    handler = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, handler)


@pytest.fixture
def link(server: Any) -> Iterator[CoordinatorLink]:
    with CoordinatorLink(lambda: (server.url, server.token), is_local=True) as made:
        yield made


@pytest.fixture
def toy(server: Any, link: CoordinatorLink) -> Iterator[ToyTrials]:
    number = link(lambda coordinator: coordinator.create_experiment(spec())).experiment
    made = ToyTrials(server.url, server.token, number)
    yield made
    made.close()


def interrupted(toy: ToyTrials) -> int:
    """The experiment has been made; its number has not yet come back."""
    os.kill(os.getpid(), signal.SIGINT)
    return toy.experiment


def test_ctrl_c_pauses_an_experiment_as_soon_as_it_exists(link: CoordinatorLink, toy: ToyTrials) -> None:
    assert follow(link, lambda: interrupted(toy)) == 128 + signal.SIGINT
    assert toy.view().state == "PAUSED"


def test_ctrl_c_after_the_end_shows_the_end(
    link: CoordinatorLink, toy: ToyTrials, capsys: pytest.CaptureFixture[str]
) -> None:
    best = toy.train_all().best
    assert follow(link, lambda: interrupted(toy)) == 0
    assert f"experiment {toy.experiment} COMPLETED" in (said := capsys.readouterr().out)
    assert f"best: trial {best.trial}" in said


def test_ctrl_c_before_the_first_trials_output_says_that_the_experiment_continues(
    link: CoordinatorLink, toy: ToyTrials, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    monkeypatch.setattr("everstep.cli.experiment_logs.leave", lambda code: left.append(code) or code)
    assert follow_first_trial(link, lambda: interrupted(toy)) == 128 + signal.SIGINT == left[0]
    assert f"`everstep e pause {toy.experiment}` pauses it" in capsys.readouterr().err
    assert toy.view().state == "ACTIVE"


def catches_sigterm(pid: int) -> bool:
    (caught,) = re.findall(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def test_ctrl_c_ends_a_wait_and_not_the_experiment(server: Any, toy: ToyTrials, tmp_path: Path) -> None:
    env = {"EVERSTEP_COORDINATOR": server.url, "EVERSTEP_TOKEN_FILE": str(server.token_file)}
    with Command(*EVERSTEP, "e", "wait", str(toy.experiment), folder=tmp_path, **env) as command:
        command.until(lambda: catches_sigterm(command.process.pid), "it waits")
        command.signal(signal.SIGINT)
        assert command.exit_code() == 128 + signal.SIGINT
        assert f"experiment {toy.experiment} continues" in command.said
    assert toy.view().state == "ACTIVE"
