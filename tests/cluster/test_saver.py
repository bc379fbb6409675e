"""States in memory outlive their worker: written when it dies, even if others die too; loaded when it is back."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.process import wait_for_end
from everstep.testing import Cluster
from lab.command import CALM_OPTIONS
from lab.patience import PATIENT
from lab.saved import load_step
from lab.stage import SCRIPTS, Stage
from lab.terminal import Run

END_S = 60.0
IN_MEMORY = ["--every", 1000, "--memory-every", 1]  # storage gets nothing as long as all goes well


def stage(folder: Path, *arguments: object, **settings: object) -> Stage:
    return Stage(folder / "checkpoints", *arguments, script="save.py", workers=1, policy=PATIENT, **settings)


def saver_pid(cluster: Cluster) -> int:
    return int(cluster.wait("saver.opened")["saver"])


def test_the_newest_state_of_a_killed_worker_is_written(tmp_path: Path) -> None:
    with stage(tmp_path, *IN_MEMORY, gates=[5]) as cluster:
        cluster.wait("checkpoint.kept", step=5)
        assert load_step(tmp_path / "checkpoints") == -1
        cluster.kill("w0")
        cluster.finish(check=False)
        assert wait_for_end(saver_pid(cluster), END_S)
    assert load_step(tmp_path / "checkpoints") == 5


def test_a_worker_that_is_started_again_loads_from_memory(tmp_path: Path) -> None:
    with stage(tmp_path, *IN_MEMORY, "--steps", 8, gates=[5], max_restarts=1) as cluster:
        cluster.wait("checkpoint.kept", step=5)
        cluster.kill("w0")
        loaded = cluster.wait("checkpoint.loaded")
        cluster.open_gate(5)
        cluster.finish()
    assert (loaded["step"], loaded["is_from_memory"]) == (5, True)
    assert load_step(tmp_path / "checkpoints") == 8  # what was only in memory at the end is written too


@pytest.mark.parametrize("end", ["SIGTERM", "SIGKILL"])
def test_the_newest_state_is_written_when_the_agent_ends(end: str, tmp_path: Path) -> None:
    with stage(tmp_path, *IN_MEMORY, gates=[5], shutdown_s=1.0) as cluster:
        cluster.wait("checkpoint.kept", step=5)
        pid = saver_pid(cluster)
        if end == "SIGTERM":
            cluster.preempt_node("w0")
            cluster.finish(check=False)
        else:
            cluster.kill_node("w0")
        assert wait_for_end(pid, END_S)
    assert load_step(tmp_path / "checkpoints") == 5


def test_a_saver_ends_when_what_is_not_kept_is_cleared_away(tmp_path: Path) -> None:
    with stage(tmp_path, "--steps", 6, "--mb", 64) as cluster:
        cluster.finish()
        assert wait_for_end(saver_pid(cluster), END_S)
    assert not list((tmp_path / "checkpoints").glob(".*"))


def test_a_half_filled_slot_is_never_taken_for_whole(tmp_path: Path) -> None:
    """Killed at any moment of a copy: what is written is one of the states that were saved."""
    with stage(tmp_path, *IN_MEMORY, "--steps", 100000, "--mb", 64) as cluster:
        cluster.wait("saved", step=12)
        cluster.kill("w0")
        cluster.finish(check=False)
        last = max(event["step"] for event in cluster.events("saved"))
    assert last - 3 <= load_step(tmp_path / "checkpoints") <= last + 1


def test_a_worker_writes_by_itself_when_its_saver_is_killed(tmp_path: Path) -> None:
    with stage(tmp_path, "--steps", 8, gates=[3]) as cluster:
        cluster.wait("checkpoint.written", step=3)
        os.kill(saver_pid(cluster), signal.SIGKILL)
        cluster.open_gate(3)
        cluster.finish()
    assert load_step(tmp_path / "checkpoints") == 8


def test_a_job_that_saves_nothing_has_no_saver(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text("import os; print('saver', os.path.exists(os.environ['EVERSTEP_SAVER']))\n")
    with Run(script, directory=tmp_path) as run:
        run.finish()
        assert "saver True" in run.said
        assert not [event for event in run.tape.read() if event["event"] == "saver.opened"]
    assert not list(tmp_path.rglob("*.saver"))


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
def test_a_small_dev_shm_does_not_matter(tmp_path: Path) -> None:
    options = " ".join(CALM_OPTIONS)
    script = f"{SCRIPTS / 'save.py'} {tmp_path / 'checkpoints'} --steps 3 --mb 50"
    run = f"{sys.executable} -m everstep run {options} {script}"
    command = f"mount -t tmpfs -o size=1m tmpfs /dev/shm && exec {run}"
    outer = {name: value for name, value in os.environ.items() if not name.startswith("EVERSTEP_")}
    environment = outer | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert load_step(tmp_path / "checkpoints") == 3
