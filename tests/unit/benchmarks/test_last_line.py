"""A benchmark's last line is its report, also if it is stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.last_line import last_line
from lab.command import ROOT

WAITS = """
import signal
from benchmarks.last_line import last_line
with last_line(lambda: {"step_s": 0.5, "join_stop_s": None}):
    print("a part is measured", flush=True)
    try:
        signal.pause()
    except Exception:
        pass
"""


def test_a_whole_report_is_printed_at_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    with last_line(lambda: {"step_s": 0.5}):
        print("a part is measured")

    assert last(capfd.readouterr().out) == {"step_s": 0.5}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_benchmark_prints_what_it_has(number: signal.Signals) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", WAITS], env=env, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(number)
        said = child.stdout.read()

    assert last(said) == {"step_s": 0.5, "join_stop_s": None, "is_partial": True}
    assert child.returncode == 128 + number


def test_a_benchmark_that_fails_prints_what_it_has(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError), last_line(lambda: {"step_s": 0.5}):
        raise RuntimeError("the transfer failed")

    assert last(capfd.readouterr().out) == {"step_s": 0.5, "is_partial": True}


def last(said: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(said.splitlines()[-1])
    return report
