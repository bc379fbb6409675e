"""A short piece of `make soak`: chance does everything to jobs on all doors, and nothing comes of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from lab.command import ROOT, run
from lab.length import usual
from soak.box import can_enter

FAULTS = 25


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.skipif(usual(True, long=False), reason="only under make test-long")
@pytest.mark.skipif(not can_enter(), reason="needs root, iproute2 and nftables")
def test_a_short_soak(tmp_path: Path) -> None:
    words = ("-m", "soak", "--faults", FAULTS, "--seed", 1)
    done = run(sys.executable, *words, folder=tmp_path, PYTHONPATH=f"{ROOT / 'tests'}:{ROOT}")

    assert done.returncode == 0, done.stdout + done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last.pop("faults") >= FAULTS and last.pop("schedules") > 3
    wanted = dict.fromkeys(("hung", "wrong_bits", "records_wrong", "checkpoints_lost", "left_behind"), 0)
    assert last == wanted
