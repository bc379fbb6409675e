"""`everstep e create` on a terminal of 80 columns, with the keys that a person presses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.command import EVERSTEP, Shell
from lab.screen import CTRL_C, Screen

SCRIPT = """
import pathlib, sys, time
import everstep
rate, folder = float(sys.argv[1]), pathlib.Path(sys.argv[2])
everstep.report({"loss": rate}, step=1)
while not (folder / "go").exists():
    time.sleep(0.02)
everstep.report({"loss": rate / 2}, step=10)
"""
FILE = """
name: the learning rate of a small network on all the images that there are, with a long name
entrypoint: train.py
args: ["{{optimizer.learning_rate}}", {folder}]
hyperparameters: {{optimizer: {{learning_rate: {{choice: [0.4, 0.2, 0.3]}}, momentum: 0.9, weight_decay: 0.0005}}}}
searcher: {{name: grid, metric: loss, max_length: {{batches: 10}}}}
"""
SAID = (
    "everstep: starting the local service",
    "local: 2 slots on this machine",
    "everstep: code: 1 file",
    "Created experiment 1",
    "everstep: pausing; trials save their state",
    "everstep: paused; `everstep e activate 1`, or the same command, continues it",
)
TABLE = ("slots in use", "trial  state", "ACTIVE ", "RUNNING", "QUEUED", "rungs")


@pytest.fixture
def screen(tmp_path: Path) -> Iterator[Screen]:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    (tmp_path / "exp.yaml").write_text(FILE.format(folder=tmp_path))
    shell = Shell(tmp_path, EVERSTEP_LOCAL_SLOTS="2", EVERSTEP_LOCAL_IDLE_S="600", EVERSTEP_NURSERY="off")
    screen = Screen(tmp_path, shell.env, width=80, height=24)
    yield screen
    screen.close()
    shell.type("pool", "stop")


def is_whole(shown: str) -> bool:
    """The table, and not in the middle of being drawn again."""
    told = ("slots in use: 2 of 2", "2 running, 1 queued", "minimizing loss", "* ", "QUEUED", "best")
    has_all = len(re.findall(r"RUNNING +1/10 +0\.\d", shown)) == 2 and all(each in shown for each in told)
    assert max(map(len, shown.splitlines()), default=0) <= 80
    return has_all


def test_ctrl_c_pauses_the_same_command_continues_and_no_row_of_the_table_is_left(
    screen: Screen, tmp_path: Path
) -> None:
    create = (*EVERSTEP, "e", "create", "exp.yaml", "code")
    screen.start(*create)
    screen.until(is_whole)

    screen.press(CTRL_C)
    assert screen.exit_code() == 130
    first = screen.lines
    assert not [line for line in first if any(each in line for each in TABLE)], screen.said
    said = [line for line in first if line.startswith(("local", "everstep", "Created"))]
    for line, beginning in zip(said, SAID, strict=True):
        assert line.startswith(beginning)

    (tmp_path / "go").touch()
    screen.start(*create)
    assert screen.exit_code() == 0
    assert screen.lines[: len(first)] == first, "what was said before stays"
    second = screen.lines[len(first) :]
    assert not [line for line in second if any(each in line for each in TABLE)], screen.said
    assert any(line.startswith("Continuing experiment 1") for line in second)
    assert "best: trial 2, loss 0.1 after 10 batches" in second
    assert "  optimizer.learning_rate: 0.2" in second
