"""The demo is run as a person would run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demo_ends_with_equal_weights() -> None:
    done = subprocess.run([sys.executable, DEMO], capture_output=True, text=True, timeout=280, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9 w1" in done.stdout
    assert "The weights are equal, bit for bit." in done.stdout
