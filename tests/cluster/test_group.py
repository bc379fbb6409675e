"""A peer dies in the middle of a message, which gloo never tells: nobody waits for ever, and memory is left alone."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import everstep
from lab import nest
from lab.stage import SCRIPTS


@pytest.mark.parametrize("what", ["recv", "send", "swap"])
def test_whoever_waits_for_half_a_message_is_set_free(what: str, tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "mid_message.py"), what]
    env = os.environ | {"PYTHONPATH": str(Path(everstep.__file__).parents[1])} | nest.ONE_THREAD
    log = tmp_path / "log"
    with log.open("wb") as output, nest.start_script(command, env=env, output=output) as survivor:
        ended = survivor.wait(60)
    assert ended is not None and ended.is_good, f"{ended}\n{log.read_text()}"
    told = json.loads(next(line for line in log.read_text().splitlines() if line.startswith("{")))
    assert told == {"outcome": "lost", "is_still": True}
