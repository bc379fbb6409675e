"""examples/01_plain_ddp: every command of its README, on one machine."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.command import Command

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "01_plain_ddp"
SINGLE, DDP = EXAMPLE / "single.py", EXAMPLE / "ddp.py"
QUICK = ("--epochs", "1", "--batch-size", "100")
CHANCE = 0.1  # of ten classes


def accuracy(said: str) -> float:
    (percent,) = re.findall(r"test accuracy ([\d.]+)%", said)
    return float(percent) / 100


def check_ranks(said: str, num_ranks: int) -> None:
    lines = [f"rank {rank} of {num_ranks} | epoch 0" for rank in range(num_ranks)]
    assert sorted(re.findall(r"rank \d+ of \d+ \| epoch \d+", said)) == lines
    assert len(re.findall(r"1 epochs took [\d.]+ s", said)) == 1
    assert accuracy(said) > 4 * CHANCE


def test_one_process_tells_how_long_it_took(python: Callable[..., str]) -> None:
    said = python(SINGLE, *QUICK)
    assert re.search(r"^1 epochs took [\d.]+ s$", said, re.MULTILINE)
    assert accuracy(said) > 4 * CHANCE


def test_torchrun_starts_it(torchrun: Callable[..., Command]) -> None:
    check_ranks(torchrun("--nproc-per-node=2", DDP, *QUICK).finish(), 2)


def test_everstep_starts_it_on_one_node(everstep_run: Callable[..., Command]) -> None:
    check_ranks(everstep_run("--nproc-per-node=2", DDP, *QUICK).finish(), 2)


def test_everstep_starts_it_on_two_nodes(everstep_run: Callable[..., Command], free_port: int) -> None:
    meeting = ["--nnodes=2", "--rdzv-id=12345", f"--rdzv-endpoint=127.0.0.1:{free_port}"]
    nodes = [everstep_run(*meeting, DDP, *QUICK) for _ in range(2)]
    check_ranks("".join(node.finish() for node in nodes), 2)


@pytest.mark.parametrize("script", [SINGLE, DDP], ids=lambda path: path.name)
def test_no_line_is_ours(script: Path) -> None:
    assert "everstep" not in script.read_text()


# --- PBS ------------------------------------------------------------------------------------------

# Only what the job's scripts need of a cluster: pbsdsh starts the command once for each node, in the home folder and
# with an environment of its own; activate makes `everstep` a command; the first node's name is this machine's.
PBSDSH = """#!/bin/bash
[ "$1" = -- ] && shift
cd "$HOME" || exit
for node in 0 1; do
  env -i HOME="$HOME" PATH=/usr/bin:/bin PBS_JOBID="$PBS_JOBID" PBS_NODENUM=$node "$@" & nodes+=($!)
done
for node in "${nodes[@]}"; do wait "$node" || exit; done
"""
HOSTNAME = "#!/bin/bash\necho 127.0.0.1\n"
EVERSTEP = f"""#!/bin/bash
export PYTHONPATH={ROOT} OMP_NUM_THREADS=1
exec {sys.executable} -m everstep "$@"
"""


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o700)


def test_pbs_starts_it_on_two_nodes(type_command: Callable[..., Command], tmp_path: Path, free_port: int) -> None:
    folder, bin_ = tmp_path / "examples" / EXAMPLE.name, tmp_path / "venv" / "bin"
    shutil.copytree(EXAMPLE, folder)
    (tmp_path / "examples" / "data").symlink_to(ROOT / "examples" / "data")
    for name, text in {"pbsdsh": PBSDSH, "hostname": HOSTNAME, "everstep": EVERSTEP}.items():
        program(bin_ / name, text)
    (bin_ / "activate").write_text(f"PATH={bin_}:$PATH\n")
    job = {"PBS_JOBID": "17.pbs", "PBS_O_WORKDIR": str(folder), "PORT": str(free_port)}

    said = type_command("bash", folder / "job.pbs", PATH=f"{bin_}:/usr/bin:/bin", **job, HOME=str(tmp_path)).finish()

    last_epoch = sorted(re.findall(r"rank \d+ of \d+ \| epoch 1", said))
    assert last_epoch == [f"rank {rank} of 4 | epoch 1" for rank in range(4)]
    assert said.count("127.0.0.1 finished with exit code 0") == 2
    assert accuracy(said) > 4 * CHANCE
