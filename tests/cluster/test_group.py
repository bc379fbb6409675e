"""A peer dies in the middle of a message, which gloo never tells: nobody waits for ever, and memory is left alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from lab import nest
from lab.command import Command
from lab.stage import SCRIPTS


@pytest.mark.parametrize("what", ["recv", "send", "swap"])
def test_whoever_waits_for_half_a_message_is_set_free(what: str, tmp_path: Path) -> None:
    words = [sys.executable, SCRIPTS / "mid_message.py", what]
    with Command(*words, folder=tmp_path, start=nest.start_script) as survivor:
        said = survivor.finish()
    told = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    assert told == {"outcome": "lost", "is_still": True}
