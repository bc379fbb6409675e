"""`everstep run` on one node with scripts that fail, hang, never join, have children, or die again and again."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from everstep.testing.tape import is_match
from lab.command import until
from lab.processes import (
    are_gone,
    children,
    coordinator_of,
    memory_mb,
    num_descriptors,
    num_threads,
    nurseries_of,
)
from lab.terminal import NONE, OWN, SHARED, Run

SCRIPTS = Path(__file__).parent / "scripts"


def script(directory: Path, text: str) -> Path:
    path = directory / "script.py"
    path.write_text(text)
    return path


# --- torch's DDP ------------------------------------------------------------------------------------


def test_a_killed_ddp_worker_restarts_both(tmp_path: Path) -> None:
    arguments = [SCRIPTS / "ddp.py", "checkpoint.pt", "--steps=20"]
    options = ["--nproc-per-node=2", "--max-restarts=1"]
    with Run(*options, *arguments, directory=tmp_path, GATES="15") as run:  # long enough for a death before the end
        run.until(lambda: any(is_match(event, "ddp.step", {"step": 3}) for event in run.tape.read()), "step 3")
        run.kill("w1")
        (tmp_path / "gate-15").touch()
        run.finish()
        results = [event for event in run.tape.read() if event["event"] == "result"]
    assert len(results) == 2
    assert len({event["weights_digest"] for event in results}) == 1
    assert "all workers restarted 1 time" in run.said


# --- scripts that fail ------------------------------------------------------------------------------

HALF_GOOD = """
import os, sys
print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"])
sys.exit(os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
"""


def test_a_good_end_of_one_worker_does_not_hide_the_failure_of_another(tmp_path: Path) -> None:
    with Run("--nproc-per-node=2", script(tmp_path, HALF_GOOD), directory=tmp_path) as run:
        assert run.exit_code() == 1
    assert "first to fail: w1, exit code 1" in run.said


def test_both_are_started_again_when_one_has_failed_and_the_other_has_ended(tmp_path: Path) -> None:
    with Run("--nproc-per-node=2", "--max-restarts=1", script(tmp_path, HALF_GOOD), directory=tmp_path) as run:
        run.finish()
    assert run.said.count("attempt 1") == 2


def test_a_script_that_fails_at_import_is_tried_as_often_as_allowed_and_shown(tmp_path: Path) -> None:
    path = script(tmp_path, "import no_such_module\n")
    with Run("--nproc-per-node=2", "--max-restarts=2", path, directory=tmp_path) as run:
        assert run.exit_code() == 1
    assert "  | ModuleNotFoundError: No module named 'no_such_module'" in run.said
    assert "all 2 restarts are used" in run.said
    assert {event["attempt"] for event in run.tape.read() if event["event"] == "attempt.began"} == {0, 1, 2}


# --- scripts that hang ------------------------------------------------------------------------------

NEVER_JOINS = f"""
import os, runpy, sys, time
if os.environ["RANK"] == "1":
    time.sleep(1000)
sys.argv[1:] = ["5"]
sys.path[0] = {str(SCRIPTS)!r}
runpy.run_path({str(SCRIPTS / "puppet.py")!r}, run_name="__main__")
"""


def test_a_worker_that_never_joins_does_not_hold_up_the_others(tmp_path: Path) -> None:
    options = ["--nproc-per-node=3", "--start-s=0.5", "--min-workers=2"]
    with Run(*options, script(tmp_path, NEVER_JOINS), directory=tmp_path) as run:
        run.finish()
    formed = [event for event in run.tape.read() if event["event"] == "generation.joined"]
    assert {(event["worker"], event["size"]) for event in formed} == {("w0", 2), ("w2", 2)}


HANGS_ONCE = """
import os, time
def wait_for_godot():
    time.sleep(1000)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    print("waiting")
    wait_for_godot()
"""


def test_a_worker_that_does_not_end_with_the_others_is_named(tmp_path: Path) -> None:
    with Run("--nproc-per-node=2", SCRIPTS / "linger.py", directory=tmp_path) as run:
        run.wait_said(r"waiting for w1 \(pid \d+\) to end")
        (tmp_path / "gate-end").touch()
        run.finish()


def test_classic_workers_that_hang_show_their_stacks_and_are_restarted(tmp_path: Path) -> None:
    options = ["--nproc-per-node=2", "--max-restarts=1", "--hang-timeout=10"]  # longer than a start takes
    with Run(*options, script(tmp_path, HANGS_ONCE), directory=tmp_path) as run:
        run.finish()
    assert len(re.findall(r"in wait_for_godot|wait_for_godot \(", run.said)) == 2  # or py-spy's
    assert "no worker printed or did anything for" in run.said


# --- children of workers ----------------------------------------------------------------------------

HAS_CHILDREN = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print("child", child.pid, flush=True)
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize("end", ["by itself", "SIGTERM", "SIGKILL"])
def test_what_workers_have_started_ends_with_them(end: str, tmp_path: Path) -> None:
    path, seconds = script(tmp_path, HAS_CHILDREN), 0.1 if end == "by itself" else 1000
    nursery = OWN if end == "SIGKILL" else SHARED
    with Run("--nproc-per-node=2", path, seconds, directory=tmp_path, nursery=nursery) as run:
        run.wait_said(r"child \d+", num_times=2)
        pids = [int(line.split()[-1]) for line in run.said.splitlines() if "] child " in line]
        if end != "by itself":
            assert not are_gone(pids[:1])
            run.signal(getattr(signal, end))
        run.exit_code()
        until(lambda: are_gone(pids), lambda: f"{pids} are still there\n{run.said}")


# --- again and again --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "num_workers", "nursery"),
    [(("--no-python", "/bin/false"), 60, NONE), (("fails.py",), 20, OWN)],
)
def test_restarts_leak_nothing(arguments: tuple[str, ...], num_workers: int, nursery: str, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("print('once more')\nraise SystemExit(3)\n")
    with Run("--max-restarts=1000", *arguments, directory=tmp_path, nursery=nursery) as run:
        before, after = (measure_at(run, num) for num in (5, num_workers))
        assert len(children(run.process.pid)) <= 3  # the coordinator, the sweeper, the worker or the nursery
        run.signal(signal.SIGTERM)
        run.exit_code()
    assert len(before) == 2 + (nursery == OWN)
    for pid in before:
        descriptors, threads, memory = (after[pid][n] - before[pid][n] for n in range(3))
        assert descriptors <= 8, (before, after)  # workers that are just being started have a few
        assert threads <= 1, (before, after)
        assert memory <= 10, (before, after)


def measure_at(run: Run, num_workers: int) -> dict[int, tuple[int, int, float]]:
    """Descriptors, threads and memory of agent, coordinator and nursery when so many workers have been started."""
    for num in range(1, num_workers + 1):  # each in time: how many there are takes as long as it takes
        run.wait_said(r"w\d+ started", num_times=num)
    pids = [run.process.pid, coordinator_of(run.process.pid), *nurseries_of(run.process.pid)]
    return {pid: (num_descriptors(pid), num_threads(pid), memory_mb(pid)) for pid in pids}
