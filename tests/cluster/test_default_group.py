"""torch.distributed's default group follows the world: for newcomers before they join, and after every regroup."""

from __future__ import annotations

import re
import subprocess
import sys

from lab.stage import SCRIPTS, Stage


def test_the_default_group_follows_the_world() -> None:
    with Stage("--steps", 24, "--micro-batch-s", 0.01, script="default_group.py", gates=[5, 15], workers=3) as cluster:
        cluster.wait_at_gate(5)
        (newcomer,) = cluster.add()
        first = cluster.wait("group.first", worker=newcomer)
        assert (first["rank"], first["size"], first["count"]) == (0, 1, 1)
        cluster.wait_ready(newcomer)
        cluster.open_gate(5)
        cluster.wait("group.told", worker=newcomer, size=4, count=4)
        cluster.wait_at_gate(15, "w0", "w1", "w2", newcomer)
        cluster.kill("w0")
        cluster.preempt("w1")  # goes after the step, and after what the script does together with all others then
        cluster.open_gate(15)
        result = cluster.finish_undisturbed()
    for event in result.events("group.told"):
        assert event["is_same"]
        assert event["count"] in (0, event["size"])
        assert event["mean"] == event["step"]
    assert {event["size"] for event in result.events("group.told")} == {2, 3, 4}
    assert result.events("group.told", worker="w1", step=16, size=3, count=3)
    assert result.events("worker.exited", worker="w1", exit_code=0)
    assert result.events("group.told", step=24, size=2, count=2)
    assert result.events("group.lost") == []


def test_a_death_in_a_users_collective_is_a_lost_peer() -> None:
    """Free running, so that the death may come in the step, in the collective or in between."""
    with Stage("--steps", 40, script="default_group.py", gates=[30], workers=3) as cluster:
        cluster.wait("group.told", step=8)
        cluster.kill("w1")
        cluster.open_gate(30)
        result = cluster.finish_undisturbed()
    assert {event["mean"] for event in result.events("group.told", step=40)} == {40}


def test_a_worker_may_be_late_for_a_collective_and_torchrun_may_restart() -> None:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    done = subprocess.run(
        [sys.executable, *command, SCRIPTS / "late.py"], capture_output=True, text=True, timeout=480, check=True
    )
    told = re.findall(r"attempt \d rank \d counts \d", done.stdout)  # two ranks may write to one line
    assert sorted(told) == [
        f"attempt {attempt} rank {rank} counts 2" for attempt in (0, 1) for rank in (0, 1) for _ in range(2)
    ]
