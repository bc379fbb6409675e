"""From the command to the first step of four workers: `everstep run` and torchrun, in turns, on one machine.

The script is plain DDP, the same for both. What counts is the moment at which the last of the workers has done its
first step. The second start is that of a run which finds the nursery of an earlier one (`--keep-warm`). The last line
is JSON.

    python benchmarks/launch.py [--rounds 7]"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.statistics_of_ratios import paired_ratio
from everstep.testing.tape import Tape

SCRIPT = Path(__file__).parent / "scripts" / "first_step.py"
WORKERS = 4
KEEP_S = "120"
HUNG_S = 120.0

EVERSTEP = [sys.executable, "-m", "everstep", "run", "--nproc-per-node", str(WORKERS)]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORKERS)]


def seconds_to_first_step(command: list[str], folder: Path) -> float:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        events = Path(place) / "events.jsonl"
        path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        env = os.environ | {
            "PYTHONPATH": path,
            "OMP_NUM_THREADS": "1",
            "XDG_RUNTIME_DIR": str(folder),
            "EVERSTEP_EVENTS": str(events),
        }
        with (Path(place) / "log").open("w+b") as log:
            began = time.monotonic()
            done = subprocess.run([*command, str(SCRIPT)], env=env, cwd=place, stdout=log, stderr=log, timeout=HUNG_S)
            steps = [event["t"] for event in Tape(events).read() if event["event"] == "first.step"]
            if done.returncode or len(steps) != WORKERS:
                log.seek(0)
                raise SystemExit(f"{command} failed\n{log.read().decode(errors='replace')}")
        return max(steps) - began


def row(name: str, taken: list[float]) -> str:
    return f"{name:44s} {statistics.median(taken):8.3f} {min(taken):8.3f} {max(taken):8.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    ours: list[float] = []
    theirs: list[float] = []
    second: list[float] = []
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as directory:
        cold, warm = Path(directory) / "cold", Path(directory) / "warm"
        cold.mkdir()
        warm.mkdir()
        seconds_to_first_step([*EVERSTEP, "--keep-warm", KEEP_S], warm)
        for _ in range(args.rounds):
            theirs.append(seconds_to_first_step(TORCHRUN, cold))
            ours.append(seconds_to_first_step(EVERSTEP, cold))
            second.append(seconds_to_first_step([*EVERSTEP, "--keep-warm", KEEP_S], warm))
        seconds_to_first_step([*EVERSTEP, "--keep-warm", "0.01"], warm)
    print(f"{'seconds from the command to the first step':44s} {'median':>8s} {'best':>8s} {'worst':>8s}")
    print(row("torchrun", theirs))
    print(row("everstep run", ours))
    print(row("everstep run, second start (--keep-warm)", second))
    ratio, warm_ratio = paired_ratio(ours, theirs), paired_ratio(second, theirs)
    print(f"everstep to torchrun {ratio}, second start {warm_ratio}")
    print(
        json.dumps(
            {
                "ratio": round(ratio.median, 4),
                "everstep_s": round(statistics.median(ours), 4),
                "torchrun_s": round(statistics.median(theirs), 4),
                "warm_ratio": round(warm_ratio.median, 4),
                "warm_s": round(statistics.median(second), 4),
            }
        )
    )


if __name__ == "__main__":
    main()
