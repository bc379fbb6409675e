"""`everstep e create` without a coordinator: this machine's slots, one command from the file to the winner."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.command import DEADLINE_S, EVERSTEP, Command, Shell, environment, until

SCRIPT = """
import pathlib, sys, time
import everstep
lr, folder = float(sys.argv[1]), pathlib.Path(sys.argv[2])
(folder / f"began-{lr}").touch()
while not (folder / "go").exists():
    time.sleep(0.02)
if (folder / "fail").exists():
    sys.exit("out of luck")
print(f"step 10: loss={abs(lr - 0.2):.3f}", flush=True)
everstep.report({"loss": abs(lr - 0.2)}, step=10)
"""
FILE = """
name: line
entrypoint: train.py
args: ["{{lr}}", {folder}]
hyperparameters: {{lr: {{choice: [0.1, 0.2, 0.4]}}}}
searcher: {{name: grid, metric: loss}}
restarts: 0
"""
CREATE = ("e", "create", "exp.yaml", "code")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    (tmp_path / "exp.yaml").write_text(FILE.format(folder=tmp_path))
    typed = Shell(tmp_path, EVERSTEP_LOCAL_SLOTS="2", EVERSTEP_LOCAL_IDLE_S="600", EVERSTEP_NURSERY="off")
    yield typed
    typed.type("pool", "stop")


def began(folder: Path) -> int:
    return len(list(folder.glob("began-*")))


def test_from_the_file_to_the_winner(shell: Shell) -> None:
    (shell.folder / "go").touch()
    said = shell.type(*CREATE)
    assert said.splitlines()[0].startswith("local: 2 slots on this machine")
    assert "Created experiment 1" in said
    assert "best: trial 2, loss 0 after 10" in said and "  lr: 0.2" in said
    assert "Created experiment 2" in shell.type(*CREATE), "the first one is over"
    rows = json.loads(shell.type("e", "list", "--json"))
    assert [each["state"] for each in rows] == ["COMPLETED", "COMPLETED"]
    assert "loss=0.000" in shell.type("e", "logs", "1", "--trial", "2")

    trials = shell.type("e", "list-trials", "1")
    assert "reason" in trials and rows[1]["num_trials"] == {"COMPLETED": 3}
    shell.type("e", "describe", "99", is_good=False)
    assert "everstep: there is no experiment 99" in shell.last.stderr, "without the call"


def test_a_preview_takes_the_time_from_earlier_trials_of_this_code(shell: Shell) -> None:
    (shell.folder / "go").touch()
    preview = ("e", "preview", "exp.yaml", "code", "--json", "--config", "searcher.max_length=20")
    assert json.loads(shell.type(*preview))["slot_hours"] is None, "nothing was trained"
    shell.type(*CREATE)
    assert json.loads(shell.type(*preview))["slot_hours"] > 0
    assert json.loads(shell.type(*preview, "--batch-s", "60"))["slot_hours"] == 1.0
    (shell.folder / "code" / "train.py").write_text(SCRIPT + "# other code\n")
    assert json.loads(shell.type(*preview))["slot_hours"] is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_pauses_and_the_same_command_continues(shell: Shell, number: int) -> None:
    command = Command(*EVERSTEP, *CREATE, folder=shell.folder, **shell.env)
    with command:
        command.until(lambda: began(shell.folder) == 2, "two trials train")
        command.signal(number)
        assert command.exit_code() == 128 + number
        assert "`everstep e activate 1`" in command.said
    (row,) = json.loads(shell.type("e", "list", "--json"))
    assert (row["state"], row["num_slots"]) == ("PAUSED", 0)

    (shell.folder / "go").touch()
    said = shell.type(*CREATE)
    assert "Continuing experiment 1" in said and "experiment 1 COMPLETED" in said
    trials = json.loads(shell.type("e", "lt", "1", "--json"))
    assert [(each["state"], each["num_restarts"]) for each in trials] == [("COMPLETED", 0)] * 3


def test_activate_shows_the_experiment_until_it_ends(shell: Shell) -> None:
    assert "Created experiment 1" in shell.type(*CREATE, "--paused")
    assert began(shell.folder) == 0
    (shell.folder / "go").touch()
    assert "best: trial 2" in shell.type("e", "activate", "1")


def test_an_experiment_whose_trials_all_fail_has_exit_code_1(shell: Shell) -> None:
    (shell.folder / "go").touch()
    (shell.folder / "fail").touch()
    said = shell.type(*CREATE, is_good=False)
    assert shell.last.returncode == 1
    assert "experiment 1 ERROR" in said
    assert "out of luck" in said and "everstep e logs 1 --trial 1" in said, "the end shows why the first one failed"


def test_the_first_trials_output_is_followed(shell: Shell) -> None:
    (shell.folder / "go").touch()
    assert "step 10: loss=0.200" in shell.type(*CREATE, "-f")


def test_test_mode_needs_no_service(shell: Shell) -> None:
    (shell.folder / "go").touch()
    said = shell.type(*CREATE, "--local", "--test")
    assert "loss=" in said
    assert not (shell.folder / "home" / "local").exists()
    assert sorted(path.name for path in (shell.folder / "code").iterdir()) == ["train.py"]


def test_a_terminal_shows_a_table(shell: Shell) -> None:
    screen = _Screen(shell)
    try:
        until(lambda: "slots in use: 2 of 2" in screen.said, lambda: screen.said)
        assert re.search(r"trial +state", screen.said)
        (shell.folder / "go").touch()
        assert screen.exit_code() == 0
        assert "best: trial 2" in screen.said
    finally:
        screen.close()


class _Screen:
    """The command on a terminal of 100 columns."""

    def __init__(self, shell: Shell) -> None:
        self._main, other = pty.openpty()
        env = environment(**shell.env) | {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
        words = [*EVERSTEP, *CREATE]
        self._process = subprocess.Popen(words, cwd=shell.folder, env=env, stdin=other, stdout=other, stderr=other)
        os.close(other)
        self.said = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._main, 4096)
            except OSError:  # the other end is closed
                return
            self.said += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data.decode(errors="replace"))

    def exit_code(self) -> int:
        return self._process.wait(DEADLINE_S)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join(DEADLINE_S)
        os.close(self._main)
