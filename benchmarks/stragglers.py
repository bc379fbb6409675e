"""The time of a step with one slow worker of four, compared with the ideal: all work divided by the speed of all.

A step has 28 micro-batches of 50 ms (sleep simulates device time), and one worker takes twice as long for each. So the
ideal shares are whole numbers: 8, 8, 8 and 4. With another --micro-batches, the best shares may exceed the ideal time.
Each of the three doors runs with shares by measured speed and with equal shares, in turns. What counts is the median
step after the first ten, in which speeds are learned. Equal shares take at least 1.75 times the ideal. If sums are
exact, both runs must end with the same bits.

The last line is JSON: for each door, {"step_s": …, "over_ideal": …, "equal_step_s": …, "equal_over_ideal": …,
"same_bits": …}, where null means that the controller does not promise it.

    python benchmarks/stragglers.py [--steps 40] [--rounds 1] [--slower 2] [--doors native controller trainer]"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.jobs import SCRIPTS
from everstep.testing import Cluster

DOORS = ("native", "controller", "trainer")
WORKERS, MICRO_BATCH_S, LEARNING = 4, 0.05, 10


@dataclass(kw_only=True)
class Runs:
    steps_s: list[float] = field(default_factory=list)
    shares: list[list[int]] = field(default_factory=list)  # one after the other
    digests: set[str] = field(default_factory=set)

    @property
    def step_s(self) -> float:
        return statistics.median(self.steps_s)


def run(runs: Runs, door: str, args: argparse.Namespace, *more: str) -> None:
    options = {
        "--steps": args.steps,
        "--micro-batches": args.micro_batches,
        "--micro-batch-s": MICRO_BATCH_S,
        "--slow": f"w{WORKERS - 1}:{args.slower}",
    }
    command = [door, *(str(word) for option in options.items() for word in option), *more]
    with Cluster(SCRIPTS / "straggler_job.py", command, workers=WORKERS) as cluster:
        result = cluster.finish(60 + 4 * args.steps)
    first: dict[int, float] = {}  # when the first worker committed each step
    for event in result.events("step.committed"):
        first.setdefault(event["step"], event["t"])
    runs.steps_s += [after - before for before, after in pairwise(list(first.values())[LEARNING:])]
    runs.shares += [event["shares"] for event in result.events("plan.dealt")]
    runs.digests.add(result.weights_digest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--micro-batches", type=int, default=28)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--slower", type=float, default=2.0)
    parser.add_argument("--doors", nargs="+", choices=DOORS, default=DOORS)
    args = parser.parse_args()
    ideal_s = args.micro_batches * MICRO_BATCH_S / (WORKERS - 1 + 1 / args.slower)
    print(f"ideal: {ideal_s:.3f} s\n{'door':12s} {'by speed':>10s} {'/ ideal':>8s} {'equal':>10s} {'/ ideal':>8s}")
    report = {}
    for door in args.doors:
        dealt, equal = Runs(), Runs()
        for _ in range(args.rounds):
            run(dealt, door, args)
            run(equal, door, args, "--equal")
        is_exact = door != "controller"
        report[door] = {
            "step_s": round(dealt.step_s, 4),
            "over_ideal": round(dealt.step_s / ideal_s, 3),
            "equal_step_s": round(equal.step_s, 4),
            "equal_over_ideal": round(equal.step_s / ideal_s, 3),
            "same_bits": len(dealt.digests | equal.digests) == 1 if is_exact else None,
        }
        times = [f"{each.step_s:10.3f} {each.step_s / ideal_s:8.3f}" for each in (dealt, equal)]
        print(f"{door:12s} {' '.join(times)}  {', then '.join(map(str, dealt.shares))}", flush=True)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
