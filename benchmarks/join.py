"""What a join costs the workers that train: how long it stops them, and how fast the state reaches the newcomer.

Four workers train a model with Adam; weights and moments make up the state (500 MB). Then one joins; in another job
eight join at once. `step_s` is the median step before. `join_stop_s` is the longest time around the join
between two commits of a worker that was there before, minus `step_s`. `transfer_gb_per_s` is measured between two
processes on loopback that do not share memory, from the sender's first look at its state to the receiver's checked
copy. The last line is JSON, with null for what was left out.

    python benchmarks/join.py [--mb 500] [--rounds 3] [--only transfer]"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.jobs import SCRIPTS, full_generation
from everstep.engine.fixed_world import Fixed
from everstep.engine.inlet import Inlet
from everstep.engine.parcel import Outgoing
from everstep.engine.state_routes import find_routes
from everstep.engine.transfer import receive_state, send_state
from everstep.testing import Cluster

WORKERS, LAYERS = 4, 8
TRANSFERS = 7
TENSORS = 50
USUAL_STEPS = 8


def transfer_worker(size_mb: int) -> None:
    torch.set_num_threads(1)
    group = Fixed("127.0.0.1").next_group(0)
    numel = size_mb * 1_000_000 // 4 // TENSORS
    state = {
        "large": [torch.ones(numel) for _ in range(TENSORS)],
        "small": [torch.tensor(float(n)) for n in range(100)],
    }
    route = find_routes(0, [1], [[], []])[group.world.rank]
    for _ in range(TRANSFERS):
        with Inlet(group.address) as inlet:
            inlets = [json.loads(raw) for raw in group.gather(json.dumps(inlet.card).encode())]
            started = time.perf_counter()
            if group.world.rank == 0:
                outgoing = Outgoing(state, "w0", is_copied=False)
                send_state(outgoing, group, route, inlets, lambda error: sys.exit(str(error)))
            else:
                received = receive_state(group, route, "w1", inlet, inlets)
                print(json.dumps(time.perf_counter() - started), flush=True)
                assert len(received["large"]) == TENSORS
        group.gather(b"received")
    os._exit(0)


def time_transfers(size_mb: int) -> list[float]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--mb", str(size_mb)]
    children = [
        subprocess.Popen(command, env={**os.environ, **world, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    said = [child.communicate()[0] for child in children]
    if any(child.returncode for child in children):
        raise SystemExit("the transfer failed")
    return [json.loads(line) for line in said[1].splitlines()]


def time_join(size_mb: int, newcomers: int) -> tuple[float, float]:
    """The usual step, and how long the join stopped the workers that were there before."""
    width = math.isqrt(size_mb * 1_000_000 // 3 // 4 // LAYERS)  # with Adam, the state is three times the weights
    micro_batches = WORKERS + newcomers
    args = ["--width", width, "--micro-batches", micro_batches, "--optimizer", "adam"]
    with Cluster(SCRIPTS / "everstep_job.py", [str(arg) for arg in args], workers=WORKERS) as cluster:
        full_generation(cluster, WORKERS)
        before = commits(cluster, "w0")
        added = cluster.add(newcomers)
        joined = [cluster.wait("step.committed", worker=worker)["step"] for worker in added]
        last = max(joined) + 1
        gaps = []
        for worker in (f"w{number}" for number in range(WORKERS)):
            cluster.wait("step.committed", worker=worker, step=last)
            times = commits(cluster, worker)
            around = [later - earlier for (_, earlier), (step, later) in pairwise(times) if min(joined) <= step <= last]
            gaps.append(max(around))
    usual = statistics.median(later - earlier for (_, earlier), (_, later) in pairwise(before[-USUAL_STEPS:]))
    return usual, max(gaps) - usual


def commits(cluster: Cluster, worker: str) -> list[tuple[int, float]]:
    return [(event["step"], event["t"]) for event in cluster.events("step.committed", worker=worker)]


def median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 3) if values else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mb", type=int, default=500, help="size of the state")
    parser.add_argument("--rounds", type=int, default=3, help="number of jobs of each kind")
    parser.add_argument("--only", choices=["transfer", "1", "8"], help="measure this part only")
    args = parser.parse_args()
    if "RANK" in os.environ:
        transfer_worker(args.mb)
        return
    transfers = time_transfers(args.mb) if args.only in (None, "transfer") else []
    rates = [args.mb / 1000 / seconds for seconds in transfers]
    if rates:
        print(f"{args.mb} MB over loopback: {statistics.median(rates):.2f} GB/s, best {max(rates):.2f}", flush=True)
    steps: list[float] = []
    stops: dict[int, list[float]] = {1: [], 8: []}
    for _ in range(args.rounds):
        for newcomers in (1, 8):
            if args.only in (None, str(newcomers)):
                step_s, stop_s = time_join(args.mb, newcomers)
                steps.append(step_s)
                stops[newcomers].append(stop_s)
                print(
                    f"{newcomers} joined: a step takes {step_s:.3f} s, the join stopped for {stop_s:.3f} s", flush=True
                )
    report = {
        "step_s": median(steps),
        "join_stop_s": median(stops[1]),
        "join_8_stop_s": median(stops[8]),
        "transfer_gb_per_s": median(rates),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
