"""The nursery of a job: replacements come from it, and kept warm it serves the next run."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

from everstep.ipc.local_socket import receive_packet
from everstep.launcher.starter import nursery_environment
from everstep.nursery.messages import KINDS, NurseryReady
from everstep.process import wait_for_end
from everstep.testing import Cluster
from lab import command
from lab.command import everstep
from lab.patience import PATIENT

SCRIPTS = Path(__file__).parent / "scripts"
READY_S = 240.0
END_S = 240.0


def environment(**more: str) -> dict[str, str]:
    return nursery_environment(command.environment(), num_workers=2) | more


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_replacement_comes_from_the_same_nursery() -> None:
    with Cluster(SCRIPTS / "train.py", ["--steps", "100000"], workers=2, policy=PATIENT, max_restarts=1) as cluster:
        cluster.wait("step.committed", worker="w1")
        first = parent_of(cluster.wait("worker.started", worker="w1")["pid"])
        cluster.kill("w1")
        second = parent_of(cluster.wait("worker.started", worker="w2")["pid"])
        cluster.wait("step.committed", worker="w2")
        assert first == second


def everstep_run(folder: Path, *options: str) -> int:
    """The parent of the one worker of a run."""
    (folder / "parent.py").write_text("import os; print('parent', os.getppid(), flush=True)")
    own = {"XDG_RUNTIME_DIR": str(folder)}
    done = everstep("run", "--log-dir", "runs", *options, "parent.py", folder=folder, **environment(**own))
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if "parent " in line)
    return int(line.split()[-1])


def kept_nurseries(folder: Path) -> set[int]:
    """Their pids: one for workers and one for the coordinator. It takes a moment until they answer."""
    pids = set()
    for path in (folder / "everstep").glob("*.nursery"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            line.connect(str(path))
            greeting = receive_packet(line, KINDS, READY_S)
            assert greeting is not None and isinstance(greeting[0], NurseryReady)
            pids.add(greeting[0].pid)
    return pids


def test_a_nursery_kept_warm_serves_the_next_run_and_ends_by_itself(tmp_path: Path) -> None:
    first = everstep_run(tmp_path, "--keep-warm", "600")
    kept = kept_nurseries(tmp_path)
    try:
        assert len(kept) == 2 and first in kept
        assert everstep_run(tmp_path, "--keep-warm", "0.1") == first
        assert all(wait_for_end(pid, END_S) for pid in kept)
        assert not list((tmp_path / "everstep").glob("*.nursery"))
    finally:
        for pid in kept:
            subprocess.run(["kill", "-9", str(pid)], check=False, capture_output=True)


def test_a_folder_that_others_may_enter_is_no_place_for_a_nursery(tmp_path: Path) -> None:
    (tmp_path / "everstep").mkdir(mode=0o755)
    assert wait_for_end(everstep_run(tmp_path, "--keep-warm", "600"), END_S)
    assert not list((tmp_path / "everstep").iterdir())
