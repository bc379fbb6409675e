"""The controller: kill -9 of one of four workers to the next committed step, and what a step costs over plain DDP.

Workers lease their records from a real coordinator and train a 20 MB model with steps of 50 ms (sleep stands for
device time). For the overhead two workers run rounds of plain DDP and of the controller in turns, in the same
processes. The last line is JSON: {"recovery_s": …, "overhead": …}.

    python benchmarks/controller.py [--kills 20] [--rounds 16]"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.jobs import SCRIPTS, full_generation, members, until, wait_for_random_phase
from benchmarks.statistics_of_ratios import paired_ratio
from everstep.testing import Cluster

JOB = SCRIPTS / "controller_job.py"
WORKERS, HUNG_S = 4, 60.0


def kills(number: int) -> tuple[list[float], int]:
    """Seconds to the survivors' next commit in a new generation, and how often it never came."""
    taken, hung = [], 0
    with Cluster(JOB, [], workers=WORKERS, max_restarts=10_000) as cluster:
        for _ in range(number):
            full = full_generation(cluster, WORKERS)
            wait_for_random_phase()
            victim = random.choice(members(cluster, full))
            killed = time.monotonic()
            cluster.kill(victim)
            after = {"t": lambda t, killed=killed: t > killed, "generation": lambda g, full=full: g > full}
            if until(lambda: bool(cluster.events("step.committed", **after)), HUNG_S):  # noqa: B023
                taken.append(cluster.events("step.committed", **after)[0]["t"] - killed)
            else:
                hung += 1
    return taken, hung


def overhead(rounds: int) -> tuple[list[float], list[float]]:
    with Cluster(JOB, ["--rounds", str(rounds)], workers=2) as cluster:
        cluster.wait("compared", timeout_s=60 + 4.0 * rounds)
        told = {name: [e["seconds"] for e in cluster.events("round", system=name)] for name in ("controller", "ddp")}
    return told["controller"], told["ddp"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=16)
    args = parser.parse_args()
    taken, hung = kills(args.kills)
    print(
        f"kill to the next step: median {statistics.median(taken):.3f} s, best {min(taken):.3f} s, "
        f"worst {max(taken):.3f} s, {len(taken)} kills, hung {hung}"
    )
    ours, ddp = overhead(args.rounds)
    ratio = paired_ratio(ours, ddp)
    print(f"a step: plain DDP {statistics.median(ddp) * 1e3:.1f} ms, ratio {ratio}")
    print(json.dumps({"recovery_s": round(statistics.median(taken), 3), "overhead": round(ratio.median, 3)}))


if __name__ == "__main__":
    main()
