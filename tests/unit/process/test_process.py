"""Real children, real deaths."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.process import ENDED, RUNNING, STOPPED, Child, Exit, process_state, wait_for_end
from lab.command import until

SUBREAPER = """
import ctypes, sys, time
from everstep.process import Child, Orphans, _zombies
ctypes.CDLL(None).prctl(36, 1)  # orphans come to us, as to process 1 of a container
for _ in range(3):
    child = Child.start(["sh", "-c", "for i in 1 2 3 4; do sleep 600 & done; wait"])
    while len(open(f"/proc/{child.pid}/task/{child.pid}/children").read().split()) < 4:
        time.sleep(0.005)
    child.kill()
while len(list(_zombies())) < 12:
    time.sleep(0.005)
orphans = Orphans()
print(orphans.reap(), orphans.reap(), len(list(_zombies())))
"""
READY = "import sys, time; print('ready', flush=True); time.sleep(600)"


def python(code: str, log: Path) -> Child:
    with log.open("wb") as output:
        return Child.start([sys.executable, "-c", code], output=output)


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("pass", Exit(code=0)),
        ("raise SystemExit(3)", Exit(code=3)),
        ("import os; os.kill(os.getpid(), 9)", Exit(code=-9)),
    ],
)
def test_how_a_child_ended(tmp_path: Path, code: str, ended: Exit) -> None:
    assert python(code, tmp_path / "log").wait(60) == ended


def test_an_exit_reads_as_a_sentence() -> None:
    assert str(Exit(code=-9)) == "killed by SIGKILL"
    assert str(Exit(code=3)) == "exit code 3"
    assert Exit(code=-40).signal == "signal 40"


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as output, Child.start(["no-such-program"], output=output) as child:
        assert child.wait(60) == Exit(code=127)
    assert "no-such-program: No such file" in (tmp_path / "log").read_text()


def test_a_death_is_seen_at_once(tmp_path: Path) -> None:
    with python(READY, tmp_path / "log") as child:
        until(lambda: (tmp_path / "log").read_text())
        assert child.wait(0) is None
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait(60) == Exit(code=-9)


def test_a_stopped_process_is_told_from_a_running_one(tmp_path: Path) -> None:
    with python(READY, tmp_path / "log") as child:
        until(lambda: (tmp_path / "log").read_text())
        until(lambda: child.state == RUNNING)
        child.signal(signal.SIGSTOP)
        until(lambda: child.state == STOPPED)
        child.signal(signal.SIGCONT)
        until(lambda: child.state == RUNNING)
    assert child.state == ENDED
    assert process_state(child.pid) == ENDED


def test_what_a_child_started_goes_with_it(tmp_path: Path) -> None:
    code = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True); sys.stdin.read(); "
    child = python(code, tmp_path / "log")
    until(lambda: (tmp_path / "log").read_text().endswith("\n"))
    grandchild = int((tmp_path / "log").read_text())
    assert child.wait(60) == Exit(code=0)
    assert wait_for_end(grandchild, 60)


def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    code = f"""
import sys, time
from everstep.process import Child
child = Child.start([sys.executable, "-c", {READY!r}])
print(child.pid, flush=True)
time.sleep(600)
"""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment, text=True)
    assert parent.stdout is not None
    lines = {parent.stdout.readline().strip(), parent.stdout.readline().strip()}
    (child,) = (int(line) for line in lines - {"ready"})
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert wait_for_end(child, 60)


def test_orphans_that_ended_are_reaped_at_the_second_look() -> None:
    """Twelve loader processes of three killed workers, and an agent without an init."""
    done = subprocess.run([sys.executable, "-c", SUBREAPER], capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout.splitlines()[-1:] == ["0 12 0"], done.stderr
