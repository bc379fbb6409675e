"""One job with many workers on this machine: how long its first step takes, what a kill and a join cost, and whether
the weights are those of one worker, bit for bit. The test behind `everstep.engine.group.LARGEST_WORLD`.

python benchmarks/world.py [--workers 64] [--steps 20]
last line JSON: {"workers": 64, "first_step_s": …, "step_s": …, "kill_s": …, "join_s": …, "are_bits_equal": …}.
`first_step_s`: from the last worker's start to the first step of all. `kill_s`: from the kill to the next step.
`join_s`: from the moment a newcomer is ready to its first step."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from everstep.testing import Cluster
from everstep.wire import Policy

JOB = Path(__file__).parent / "scripts" / "world_job.py"
PATIENCE_S = 500.0
CALM = Policy(
    lease_s=120.0, arrive_s=300.0, stall_s=300.0
)  # all share a few cores, and none is to be lost for being slow


def measure(workers: int, steps: int, folder: Path) -> dict[str, object]:
    gate = folder / "gate"
    args = ["--micro-batches", str(workers), "--steps", str(steps), "--gate", str(gate)]
    with Cluster(JOB, args, workers=1, policy=CALM) as cluster:
        gate.touch()
        expected = cluster.finish(PATIENCE_S).weights_digest
    gate.unlink()
    with Cluster(JOB, args, workers=workers, policy=CALM) as cluster:
        started = time.monotonic()
        first = cluster.wait("step.committed", PATIENCE_S, step=1)
        cluster.wait("step.committed", PATIENCE_S, step=4)
        commits = {event["step"]: event["t"] for event in cluster.events("step.committed", worker=first["worker"])}
        victim = next(name for name in ("w1", "w2") if name != first["worker"])
        killed = time.monotonic()
        cluster.kill(victim)
        settled = cluster.wait("regroup.settled", PATIENCE_S, size=workers - 1)
        after = cluster.wait("step.committed", PATIENCE_S, generation=settled["generation"])
        (newcomer,) = cluster.add()
        while "waiting" not in {each.status for each in cluster.view().workers}:
            time.sleep(0.1)
        began = time.monotonic()
        gate.touch()
        joined = cluster.wait("step.committed", PATIENCE_S, worker=newcomer)
        result = cluster.finish(PATIENCE_S)
    return {
        "workers": workers,
        "first_step_s": round(first["t"] - started, 2),
        "step_s": round(statistics.median(later - sooner for sooner, later in pairwise(sorted(commits.values()))), 2),
        "kill_s": round(after["t"] - killed, 2),
        "join_s": round(joined["t"] - began, 2),
        "are_bits_equal": result.weights_digest == expected,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(args.workers, args.steps, Path(folder))))


if __name__ == "__main__":
    main()
