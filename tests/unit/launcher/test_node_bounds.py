"""What runs leave on a node stays within its bounds: events by bytes, logs of old runs by days."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from everstep.launcher import run_record
from everstep.launcher.node_bounds import drop_events, drop_old_logs
from everstep.launcher.run_record import RunRecord

DAY_S = 86_400.0


def test_the_oldest_events_are_freed_and_counted_and_the_newest_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lines = [json.dumps({"event": "e", "number": number}) + " " * 100 for number in range(20_000)]
    path.write_text("\n".join(lines) + "\n")
    size = path.stat().st_size

    dropped = drop_events(path, 1_000_000)
    assert path.stat().st_size == size
    assert path.stat().st_blocks * 512 < 1_000_000
    left = path.read_bytes().lstrip(b"\0").split(b"\n")[1:-1]  # the first may be cut
    assert [json.loads(line)["number"] for line in left] == list(range(20_000 - len(left), 20_000))
    assert 0 <= 20_000 - len(left) - dropped <= 1 + 4096 // 120  # what shares a block with the first is not freed
    assert drop_events(path, 1_000_000) == 0
    assert drop_events(tmp_path / "missing", 1) == 0


def run_of(log_dir: Path, name: str, *, days_ago: float, state: str) -> Path:
    folder = log_dir / name
    (folder / "w0").mkdir(parents=True)
    (folder / "w0" / "stdout.log").write_text("x" * 10_000)
    for file in ("events.jsonl", "record.json", "coordinator.db", "coordinator-logs.db"):
        (folder / file).write_text("x" * 10)
    alive = {"pid": os.getpid(), "pid_started_at": run_record.started_at(os.getpid())} if state == "running" else {}
    run_record.write(folder, RunRecord(job=name, state=state, **alive))
    then = time.time() - days_ago * DAY_S
    os.utime(folder / run_record.NAME, (then, then))
    return folder


def test_logs_of_runs_that_ended_long_ago_are_removed_and_their_records_stay(tmp_path: Path) -> None:
    old = run_of(tmp_path, "old", days_ago=31, state=run_record.FAILED)
    new = run_of(tmp_path, "new", days_ago=29, state=run_record.FINISHED)
    going = run_of(tmp_path, "going", days_ago=31, state=run_record.RUNNING)
    kept = {folder: sorted(folder.rglob("*")) for folder in (new, going)}

    names, num_bytes = drop_old_logs(tmp_path, 30, time.time())
    assert names == ["old"]
    assert num_bytes >= 10_000
    assert sorted(path.name for path in old.iterdir()) == [
        "coordinator-logs.db",
        "coordinator.db",
        "record.json",
        "run.json",
    ]
    assert {folder: sorted(folder.rglob("*")) for folder in (new, going)} == kept
    assert drop_old_logs(tmp_path, 30, time.time()) == ([], 0)
