"""Files on a node stay within the bounds that the job has, and what was dropped from them is counted and said."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from everstep.client.calls import Coordinator
from everstep.launcher import node_bounds, run_record
from everstep.launcher.node_bounds import NodeBounds
from everstep.launcher.run_record import RunRecord
from lab.command import until


@pytest.fixture
def bounds(play: Any, server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(node_bounds, "LOOK_S", 3600.0)  # a short run has only the first look
    job = play(node_log_mb=1, node_log_days=2).coordinator
    said: list[str] = []
    made = NodeBounds(
        lambda: Coordinator(job.url, server.token, job.job),
        agent="a0",
        events=tmp_path / "this" / "events.jsonl",
        directory=tmp_path / "this",
        say=said.append,
    )
    return made, said


def test_events_beyond_the_bytes_and_logs_beyond_the_days_are_dropped_and_that_is_said(
    bounds: Any, tmp_path: Path
) -> None:
    old, events = tmp_path / "old", tmp_path / "this" / "events.jsonl"
    for folder in (old, events.parent):
        folder.mkdir()
    (old / "events.jsonl").write_text("x" * 10_000)
    run_record.write(old, RunRecord(job="old", state=run_record.FINISHED))
    os.utime(old / run_record.NAME, (time.time() - 3 * 86_400,) * 2)
    line = json.dumps({"event": "e"}) + " " * 100 + "\n"
    events.write_text(line * 20_000)

    made, said = bounds
    with made:
        until(lambda: events.stat().st_blocks * 512 < 1_000_000 and not (old / "events.jsonl").exists())
    removed, dropped = said
    assert re.match(r"removed the logs \(0\.0 MB\) of 1 runs in .* that ended more than 2 days ago", removed)
    num_left = events.read_bytes().lstrip(b"\0").count(b"\n")
    num_dropped = int(dropped.split()[0].replace(",", ""))
    assert "of the oldest events were dropped" in dropped
    assert 0 <= 20_000 - num_left - num_dropped <= 1 + 4096 // len(line)  # what shares a block with the first stays
