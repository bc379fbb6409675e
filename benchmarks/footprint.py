"""What a worker holds in worlds of several sizes, and the straight lines for everstep/doctor/world_needs.py.

For each size, all workers but one begin, and the last one joins: for a moment, two groups of connections are open. What
counts is the most that any worker has held by then. The model is tiny, so the memory is that of Everstep and torch
alone. A line has the slope of a least-squares fit, and is above all measurements.
The last line is JSON: {"files": {"fixed": …, "per_worker": …}, "threads": …, "memory_mb": …}. If a change
makes connections grow differently, write these numbers into world_needs.py, rounded up, and run
`python tools/docs_tables.py`.

    python benchmarks/footprint.py [--sizes 2 4 8 16]"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import linear_regression

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.jobs import SCRIPTS
from everstep.testing import Cluster

READY_S = 300.0


def measure(size: int) -> dict[str, float]:
    """The most that any worker in a world of this size has held."""
    with Cluster(SCRIPTS / "footprint_job.py", ["--workers", str(size)], workers=size - 1) as cluster:
        cluster.wait("step.committed", step=5, timeout_s=READY_S)
        cluster.add()
        for number in range(size):
            cluster.wait("footprint", worker=f"w{number}", timeout_s=READY_S)
        told = cluster.events("footprint")
    most = {name: max(event[name] for event in told) for name in ("files", "threads", "memory_bytes")}
    return {"files": most["files"], "threads": most["threads"], "memory_mb": most["memory_bytes"] / (1 << 20)}


def line(sizes: list[int], held: list[float]) -> dict[str, float]:
    slope = max(0.0, linear_regression(sizes, held).slope)
    fixed = max(each - slope * size for size, each in zip(sizes, held, strict=True))
    return {"fixed": round(fixed, 2), "per_worker": round(slope, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 4, 8, 16])
    args = parser.parse_args()
    print(f"{'workers':>8s} {'files':>8s} {'threads':>8s} {'memory':>8s}")
    held = []
    for size in args.sizes:
        held.append(measure(size))
        print(
            f"{size:8d} {held[-1]['files']:8.0f} {held[-1]['threads']:8.0f} {held[-1]['memory_mb']:5.0f} MB", flush=True
        )
    print(json.dumps({name: line(args.sizes, [each[name] for each in held]) for name in held[0]}))


if __name__ == "__main__":
    main()
