"""The demo is run as a person would run it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lab.command import ROOT, run


@pytest.mark.slow
def test_the_demo_ends_with_equal_weights(tmp_path: Path) -> None:
    done = run(sys.executable, ROOT / "examples" / "demo.py", folder=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9 w1" in done.stdout
    assert "The weights are equal, bit for bit." in done.stdout
