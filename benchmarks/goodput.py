"""How much progress remains when a worker is killed every 10 seconds: Everstep and torchrun, in turns.

Three workers, three micro-batches, steps of 50 ms, nearly all of it sleep that simulates device time. Goodput is the
number of new steps committed while workers were killed, divided by that of an undisturbed run of the same length,
computed from the rate before the first kill. Steps that torchrun repeats, from a checkpoint every 10 steps, do not
count twice. The last line is JSON.

    python benchmarks/goodput.py [--seconds 120]"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.jobs import SCRIPTS, Torchrun, TorchrunNode, full_generation, members, until
from everstep.testing import Cluster
from everstep.testing.tape import Event

WORKERS = 3
MODEL = ["--width", "200"]  # 1.3 MB: most of a step is sleep
EVERY_S = 10.0
READY_S = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Half:
    """One turn of one system."""

    undisturbed_per_s: float  # steps
    num_steps: int  # while workers were killed …
    seconds: float  # … and for how long
    num_kills: int

    @property
    def goodput(self) -> float:
        return self.num_steps / (self.undisturbed_per_s * self.seconds)


def measure(steps: Callable[[], Sequence[Event]], kill_one: Callable[[], bool], seconds: float) -> Half:
    """A quarter of the time undisturbed, then a kill in the middle of every 10 seconds."""

    def reached(at: float) -> int:
        return max((event["step"] for event in steps() if event["t"] <= at), default=0)

    calm_s = max(5.0, seconds / 4)
    began = time.monotonic()
    time.sleep(calm_s)
    before = reached(began + calm_s)
    per_s = (before - reached(began)) / calm_s
    began, num_kills = began + calm_s, 0
    for number in range(int(seconds // EVERY_S)):
        time.sleep(max(0.0, began + (number + 0.5) * EVERY_S - time.monotonic()))
        num_kills += kill_one()
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    return Half(
        undisturbed_per_s=per_s, num_steps=reached(began + seconds) - before, seconds=seconds, num_kills=num_kills
    )


def everstep_half(seconds: float) -> Half:
    args = ["--workers", str(WORKERS), "--micro-batches", str(WORKERS), *MODEL]
    with Cluster(SCRIPTS / "everstep_job.py", args, workers=WORKERS, max_restarts=10_000) as cluster:
        full_generation(cluster, WORKERS)

        def kill_one() -> bool:
            newest = max(event["generation"] for event in cluster.events("generation.formed"))
            gone = {event["worker"] for event in cluster.events("worker.exited")}
            cluster.kill(random.choice([name for name in members(cluster, newest) if name not in gone]))
            return True

        return measure(lambda: cluster.events("step.committed"), kill_one, seconds)


def torchrun_half(seconds: float) -> Half:
    node = TorchrunNode(options=["--standalone", "--nproc-per-node", str(WORKERS), "--max-restarts", "10000"])
    with Torchrun(node, args=MODEL) as job:
        if not until(lambda: len(job.steps()) >= 10 * WORKERS, READY_S):
            raise SystemExit(f"torchrun's workers did not start in {READY_S:.0f} s")

        def kill_one() -> bool:
            if alive := job.alive():  # otherwise it is still restarting them after the last kill
                os.kill(random.choice(alive), signal.SIGKILL)
            return bool(alive)

        return measure(job.steps, kill_one, seconds)


def mean_goodput(halves: Sequence[Half]) -> float | None:
    return round(sum(half.goodput for half in halves) / len(halves), 4) if halves else None


def row(name: str, halves: Sequence[Half]) -> str:
    steps, kills = sum(half.num_steps for half in halves), sum(half.num_kills for half in halves)
    per_s = sum(half.undisturbed_per_s for half in halves) / len(halves)
    return f"{name:12s} {mean_goodput(halves):8.3f} {per_s:14.2f} {steps:7d} {kills:6d}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip-torchrun", action="store_true")
    args = parser.parse_args()
    random.seed(args.seed)
    # In turns, half of each, so that a change of the machine's load affects both.
    ours: list[Half] = []
    theirs: list[Half] = []
    for _ in range(2):
        ours.append(everstep_half(args.seconds / 2))
        if not args.skip_torchrun:
            theirs.append(torchrun_half(args.seconds / 2))
    print(f"{'':12s} {'goodput':>8s} {'undisturbed/s':>14s} {'steps':>7s} {'kills':>6s}")
    print(row("Everstep", ours))
    if theirs:
        print(row("torchrun", theirs))
    print(json.dumps({"goodput": mean_goodput(ours), "torchrun_goodput": mean_goodput(theirs)}))


if __name__ == "__main__":
    main()
