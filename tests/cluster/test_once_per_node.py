"""Data that is loaded once per node: by one process, in the memory of one, for all trials and workers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from everstep.testing.tape import Tape
from lab.command import everstep, until
from lab.pool_stage import PoolStage

SCRIPT = (Path(__file__).parent / "scripts/sharing_trial.py").read_text()
MB = 128


def proportional_bytes(pids: list[int]) -> int:
    """Memory of these processes, where a page that several have counts for each in part."""
    rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() for pid in pids]
    own = ("Pss_Anon:", "Pss_Shmem:")  # libraries count less while other tests have them, too
    return sum(int(line.split()[1]) * 1024 for lines in rollups for line in lines if line.startswith(own))


def pids(folder: Path, name: str) -> list[int]:
    return [int(path.name.partition("-")[2]) for path in folder.glob(f"{name}-*")]


def test_eight_trials_of_a_node_have_the_data_once(tmp_path: Path) -> None:
    with PoolStage(tmp_path, EVERSTEP_EVENTS=str(tmp_path / "events.jsonl")) as stage:
        stage.join(slots=8)
        experiment = stage.trials.create(8, "--mb", str(MB), script=SCRIPT)
        until(lambda: len(pids(tmp_path, "ready")) == 8, lambda: f"{stage.trials.trials(experiment)}")
        found = pids(tmp_path, "ready")
        before = proportional_bytes(found)
        (tmp_path / "begin").touch()
        until(lambda: len(pids(tmp_path, "loaded")) == 8, lambda: f"{stage.trials.trials(experiment)}")
        after = proportional_bytes(found)
        assert MB * 1e6 < after - before <= 1.3 * MB * 1e6
        assert len((tmp_path / "loads").read_text().splitlines()) == 1
        assert len({(tmp_path / f"loaded-{pid}").read_text() for pid in found}) == 1
        stage.trials.let_go()
        assert stage.trials.wait_state(experiment, "COMPLETED", "ERROR").state == "COMPLETED"
        for path in [*tmp_path.glob("ready-*"), *tmp_path.glob("loaded-*")]:
            path.unlink()
        other = stage.trials.create(1, "--mb", "2", script=SCRIPT)
        stage.trials.wait_state(other, "COMPLETED", "ERROR")
        sizes = [each["size_bytes"] for each in Tape(tmp_path / "events.jsonl").read() if each["event"] == "data.freed"]
        assert max(sizes) > MB * 1e6, "other data needs the room"


def test_if_the_process_that_loads_is_killed_another_one_loads(tmp_path: Path) -> None:
    with PoolStage(tmp_path) as stage:
        stage.join(slots=2)
        (tmp_path / "begin").touch()
        experiment = stage.trials.create(2, "--first-waits", script=SCRIPT)
        loads = tmp_path / "loads"
        until(lambda: loads.exists() and loads.read_text() and len(pids(tmp_path, "ready")) == 2)
        (first,) = loads.read_text().split()
        os.kill(int(first), signal.SIGKILL)
        stage.trials.let_go()
        assert stage.trials.wait_state(experiment, "COMPLETED", "ERROR").state == "COMPLETED"
        assert len(loads.read_text().split()) == 2
        assert len({path.read_text() for path in tmp_path.glob("loaded-*")}) == 1, "random numbers do not depend on it"


def test_the_workers_of_a_run_share_too_and_alone_a_script_loads_the_same(tmp_path: Path) -> None:
    script = tmp_path / "share.py"
    script.write_text(
        "import os, random, numpy, torch, everstep\n"
        "def load(name, *, size):\n"
        "    print('loads', name, flush=True)\n"
        "    return numpy.random.random(size), torch.rand(size), random.random()\n"
        "arrays, tensors, one = everstep.once_per_node(load, 'train', size=5)\n"
        "print('has', arrays.sum(), tensors.sum().item(), one, flush=True)\n"
    )
    done = everstep("run", "--nproc-per-node", 3, script, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    words = [line.partition("] ")[2] or line for line in (done.stdout + done.stderr).splitlines()]
    loads = [line for line in words if "loads train" in line]
    found = {line[line.index("has ") :] for line in words if "has " in line}
    assert (len(loads), len(found)) == (1, 1), done.stdout
    alone = everstep("run", "--nproc-per-node", 1, script, folder=tmp_path)
    assert found.pop() in alone.stdout
