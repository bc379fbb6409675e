"""`everstep tensorboard`: the real TensorBoard over trials of a real coordinator, asked over HTTP."""

from __future__ import annotations

import json
import math
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from lab.command import EVERSTEP, Command, Shell, until
from lab.reported_trials import ReportedTrials

pytest.importorskip("tensorboard")
LOSS = [(step, 100.0 + step, 1 / step) for step in range(1, 6)]


@pytest.fixture
def reported(server: Any) -> Iterator[ReportedTrials]:
    made = ReportedTrials(server, name="digits", max_trials=2)
    made.report(1, {"training/loss": LOSS, "validation/loss": [(5, 9.0, "nan")]})
    made.report(2, {"training/loss": LOSS[:2]})
    yield made
    made.close()


@pytest.fixture
def shell(tmp_path: Path, server: Any) -> Shell:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    there = {"EVERSTEP_COORDINATOR": server.url, "EVERSTEP_TOKEN_FILE": str(server.token_file)}
    return Shell(tmp_path, TMPDIR=str(temporary), **there)


class Board:
    def __init__(self, shell: Shell, *words: str) -> None:
        self.command = Command(*EVERSTEP, "tensorboard", *words, folder=shell.folder, **shell.env)
        self.url = self.command.wait_said(r"(?m)^(http://127\.0\.0\.1:\d+)/$")[1]

    def ask(self, path: str) -> Any:
        answer = httpx.get(f"{self.url}/data/{path}", timeout=60)
        return answer.json() if answer.status_code == 200 else None

    def runs(self) -> list[str]:
        return sorted(self.ask("runs") or [])

    def points(self, run: str, tag: str) -> list[tuple[int, float]]:
        found = self.ask(f"plugin/scalars/scalars?run={quote(run)}&tag={quote(tag)}") or []
        return [(step, float(value)) for _, step, value in found]

    def end(self) -> None:
        self.command.process.signal(signal.SIGINT, is_for_group=False)
        assert self.command.exit_code() == 130, self.command.said


def test_trials_are_shown_and_kept_up_to_date_and_nothing_is_left(reported: ReportedTrials, shell: Shell) -> None:
    number = str(reported.number)
    first, second = f"experiment_{number}/trial_1", f"experiment_{number}/trial_2"
    board = Board(shell, number)
    until(lambda: board.runs() == [first, second], lambda: f"{board.runs()}\n{board.command.said}")
    wanted = [(step, pytest.approx(value)) for step, _, value in LOSS]
    until(lambda: board.points(first, "training/loss") == wanted, lambda: board.command.said)
    ((step, value),) = board.points(first, "validation/loss")
    assert step == 5 and math.isnan(value)

    reported.report(2, {"training/loss": LOSS[2:]})
    until(lambda: len(board.points(second, "training/loss")) == 5, lambda: board.command.said)

    asked = httpx.post(
        f"{board.url}/data/plugin/hparams/experiment", content=json.dumps({"experimentName": ""}), timeout=60
    ).json()
    assert {each["name"] for each in asked["hparamInfos"]} == {"lr", "layers"}
    board.end()
    assert list(Path(shell.env["TMPDIR"]).iterdir()) == []


def test_a_choice_of_trials_by_number_and_by_id_and_a_port(reported: ReportedTrials, shell: Shell) -> None:
    ids = [each.trial_id for each in reported.trials()]
    board = Board(shell, "start", str(reported.number), "--trial", "2")
    assert re.search(r"1 trial, 0 with their own files", board.command.said)
    until(lambda: board.runs() == [f"experiment_{reported.number}/trial_2"], lambda: board.command.said)
    shell.type("tensorboard", "-t", str(ids[0]), "--port", board.url.rpartition(":")[2], is_good=False)
    assert "TensorBoard did not start" in shell.last.stderr and "--port" in shell.last.stderr
    board.end()
    assert list(Path(shell.env["TMPDIR"]).iterdir()) == []


def test_what_is_not_there_is_told(reported: ReportedTrials, shell: Shell) -> None:
    shell.type("tensorboard", str(reported.number), "--trial", "9", is_good=False)
    assert f"experiment {reported.number} has no trial 9; it has 2 trials" in shell.last.stderr
    shell.type("tensorboard", "--port", "0", is_good=False)
    assert "no experiment and no trial is named" in shell.last.stderr
    shell.type("tensorboard", "--trial", "1", "-t", "1", is_good=False)
    assert "no experiment is named" in shell.last.stderr


def test_without_the_package_the_way_out_is_told(reported: ReportedTrials, shell: Shell) -> None:
    (shell.folder / "tensorboard").mkdir()
    (shell.folder / "tensorboard" / "__init__.py").write_text("raise ImportError('not here')\n")
    shell.env["PYTHONPATH"] = os.pathsep.join([str(shell.folder), str(Path(__file__).parents[3])])
    shell.type("tensorboard", str(reported.number), is_good=False)
    assert "everstep[tensorboard]" in shell.last.stderr
