"""`everstep e create` without a coordinator: this machine's slots, one command from the file to the winner."""

from __future__ import annotations

import json
import re
import signal
import site
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.command import EVERSTEP, Command, Shell, run, until
from lab.screen import Screen

SCRIPT = """
import pathlib, sys, time
import everstep
lr, folder = float(sys.argv[1]), pathlib.Path(sys.argv[2])
(folder / f"began-{lr}").touch()
print("with", sys.prefix, flush=True)
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

    assert "1 trial" in shell.type(*CREATE, "-t")
    assert json.loads(shell.type("e", "list", "--json")) == rows, "a test is archived"

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


def test_a_terminal_that_closes_pauses(shell: Shell) -> None:
    screen = Screen(shell.folder, shell.env)
    try:
        screen.start(*EVERSTEP, *CREATE)
        until(lambda: began(shell.folder) == 2, lambda: screen.said)
        screen.hang_up()
        assert screen.exit_code() == 128 + signal.SIGHUP
    finally:
        screen.close()
    (row,) = json.loads(shell.type("e", "list", "--json"))
    assert (row["state"], row["num_slots"]) == ("PAUSED", 0)


def test_activate_shows_the_experiment_until_it_ends(shell: Shell) -> None:
    assert "Created experiment 1" in shell.type(*CREATE, "--paused")
    assert "Continuing experiment 1" in shell.type(*CREATE, "--paused")
    assert "`everstep e activate 1` starts it" in shell.last.stderr
    assert began(shell.folder) == 0
    shell.type("e", "activate", "1", "--detach")
    shell.type(*CREATE, "--paused")
    assert "experiment 1 already exists, and is ACTIVE; `everstep e pause 1` pauses it" in shell.last.stderr
    with Command(*EVERSTEP, "e", "activate", "1", folder=shell.folder, **shell.env) as command:
        command.wait_said("experiment 1 ACTIVE")
        (shell.folder / "go").touch()
        assert "best: trial 2" in command.finish()


def test_the_output_of_a_trial_is_followed_with_times(shell: Shell) -> None:
    shell.type(*CREATE, "--paused")
    shell.type("e", "activate", "1", "--detach")
    until(lambda: began(shell.folder) == 2)
    words = ("e", "logs", "1", "--trial", "2", "--follow", "--timestamps")
    with Command(*EVERSTEP, *words, folder=shell.folder, **shell.env) as command:
        command.wait_said(r"(?m)^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d \[w\d+\] with /")
        assert "loss=" not in command.said
        (shell.folder / "go").touch()
        assert re.search(r"(?m)^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d \[w\d+\] step 10: loss=0.000$", command.finish())


def test_trials_run_in_the_python_environment_of_the_command_that_begins_them(shell: Shell, tmp_path: Path) -> None:
    """One environment at a time: another one waits until the experiments of the first are over."""
    other = another_environment(tmp_path / "other")
    with Command(*EVERSTEP, *CREATE, folder=shell.folder, **shell.env) as command:
        command.until(lambda: began(shell.folder) == 2, "two trials train")
        shell.env["EVERSTEP_LOCAL_SLOTS"] = "7"
        assert shell.type("e", "activate", "1", "--detach").startswith("local: 2 slots"), "those of the service"
        refused = run(other, "-m", "everstep", *CREATE, "--paused", folder=shell.folder, **shell.env)
        assert refused.returncode == 2
        assert sys.prefix in refused.stderr and str(tmp_path / "other") in refused.stderr
        assert "everstep pool stop" in refused.stderr
        looked = run(other, "-m", "everstep", "e", "list", "--json", folder=shell.folder, **shell.env)
        assert json.loads(looked.stdout)[0]["state"] == "ACTIVE", "looking is possible from everywhere"
        (shell.folder / "go").touch()
        command.finish()
    done = run(other, "-m", "everstep", *CREATE, folder=shell.folder, **shell.env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("local: 7 slots") and "Created experiment 2" in done.stdout
    assert f"with {sys.prefix}" in shell.type("e", "logs", "1")
    assert f"with {tmp_path / 'other'}" in shell.type("e", "logs", "2")


def another_environment(folder: Path) -> Path:
    """Its Python, with the same packages."""
    venv.create(folder, symlinks=True)
    (found,) = folder.glob("lib/python*/site-packages")
    (found / "same.pth").write_text("\n".join(site.getsitepackages()))
    return folder / "bin" / "python"


def test_an_experiment_whose_trials_all_fail_has_exit_code_1(shell: Shell) -> None:
    (shell.folder / "go").touch()
    (shell.folder / "fail").touch()
    said = shell.type(*CREATE, is_good=False)
    assert shell.last.returncode == 1
    assert "experiment 1 ERROR" in said
    assert "out of luck" in said and "everstep e logs 1 --trial 1" in said, "the end shows why the first one failed"


def test_the_first_trials_output_is_followed(shell: Shell) -> None:
    (shell.folder / "go").touch()
    shell.env["EVERSTEP_COORDINATOR"] = "http://127.0.0.1:9"  # --local goes before it
    said = shell.type(*CREATE, "--follow-first-trial", "--local")
    assert said.startswith("local: ") and "step 10: loss=0.200" in said
    del shell.env["EVERSTEP_COORDINATOR"]


def test_test_mode_needs_no_service(shell: Shell) -> None:
    (shell.folder / "go").touch()
    said = shell.type(*CREATE, "--local", "--test")
    assert "loss=" in said
    assert not (shell.folder / "home" / "local").exists()
    assert sorted(path.name for path in (shell.folder / "code").iterdir()) == ["train.py"]


def test_test_mode_runs_the_lines_of_setup(shell: Shell) -> None:
    (shell.folder / "go").touch()
    (shell.folder / "code" / "train.py").write_text("import os; print('luck', os.environ['LUCK'])\n" + SCRIPT)
    file = FILE.format(folder=shell.folder)
    (shell.folder / "exp.yaml").write_text(file + 'setup: ["export LUCK=7"]\n')
    assert "luck 7" in shell.type(*CREATE, "--local", "--test")
    (shell.folder / "exp.yaml").write_text(file + 'setup: ["export LUCK=7", "false"]\n')
    assert "luck" not in shell.type(*CREATE, "--local", "--test", is_good=False)
