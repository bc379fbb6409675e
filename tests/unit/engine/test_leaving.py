"""SIGTERM asks a worker to leave; a queue and the agent may both ask."""

from __future__ import annotations

import subprocess
import sys

ASKED_TWICE = """
import os, signal, sys
from everstep.engine import leaving

wishes = []
leaving._SAME_S = float(sys.argv[1])
leaving.on_sigterm(lambda: wishes.append("leave"))
os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGTERM)
print(wishes)
"""


def asked_twice(same_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", ASKED_TWICE, str(same_s)], capture_output=True, text=True, check=False)


def test_two_sigterms_at_once_are_one_request() -> None:
    done = asked_twice(60.0)
    assert (done.returncode, done.stdout) == (0, "['leave']\n")


def test_a_later_one_ends_the_process() -> None:
    assert asked_twice(0.0).returncode == -15
