"""The controller: time from kill -9 of one of four workers to the next committed step, cost of a step over plain DDP,
and length of an epoch with one slow worker.

Workers lease their records from a real coordinator and train a 20 MB model with steps of 50 ms (sleep simulates device
time). For the overhead, two workers run rounds of plain DDP and of the controller in turns, in the same processes. For
uneven speeds, four workers, one of which needs four times as long for a batch, share steps of 13 batches of a small
model; the ideal is an epoch in which no worker ever waits.
The last line is JSON: {"recovery_s": …, "overhead": …}.

    python benchmarks/controller.py [--kills 20] [--rounds 16] [--epochs 3]"""

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
SLOWER, GLOBAL_BATCHES, UNEVEN_STEPS, UNEVEN_S = 4, 13, 60, 0.1  # 13: batches of all workers during one of the slow one


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


def uneven() -> float:
    """The time of an epoch over the ideal, from the first start to the last commit, including learning the pace."""
    batches = UNEVEN_STEPS * GLOBAL_BATCHES
    args = ["--uneven", UNEVEN_S, "--batches", batches, "--global-batches", GLOBAL_BATCHES]
    with Cluster(JOB, [str(arg) for arg in args], workers=WORKERS) as cluster:
        result = cluster.finish(300)
    begun = max(event["t"] for event in result.events("regroup.settled"))
    ended = max(event["t"] for event in result.events("step.committed"))
    return (ended - begun) / (batches * UNEVEN_S / (WORKERS - 1 + 1 / SLOWER))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    taken, hung = kills(args.kills)
    print(
        f"kill to the next step: median {statistics.median(taken):.3f} s, best {min(taken):.3f} s, "
        f"worst {max(taken):.3f} s, {len(taken)} kills, hung {hung}"
    )
    ours, ddp = overhead(args.rounds)
    ratio = paired_ratio(ours, ddp)
    print(f"a step: plain DDP {statistics.median(ddp) * 1e3:.1f} ms, ratio {ratio}")
    ratios = [uneven() for _ in range(args.epochs)]
    print(
        f"an epoch of {WORKERS} workers, one {SLOWER} times slower, over the ideal: "
        f"median {statistics.median(ratios):.3f}, worst {max(ratios):.3f}, {len(ratios)} epochs"
    )
    print(json.dumps({"recovery_s": round(statistics.median(taken), 3), "overhead": round(ratio.median, 3)}))


if __name__ == "__main__":
    main()
