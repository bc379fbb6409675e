"""A peer dies in the middle of a message, which gloo never tells: nobody waits for ever, and memory is left alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import everstep
from stage import SCRIPTS


@pytest.mark.parametrize("what", ["recv", "send", "swap"])
def test_whoever_waits_for_half_a_message_is_set_free(what: str) -> None:
    path = str(Path(everstep.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "mid_message.py"), what],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == {"outcome": "lost", "is_still": True}
