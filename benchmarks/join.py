"""What a join costs the workers that train: how long it stops them, and how fast the state reaches the newcomer.

Four workers train a model with Adam; weights and moments make up the state (500 MB). Then one joins; in another job
eight join at once. `step_s` is the median step before. `join_stop_s` is the longest time around the join between two
commits of a worker that was there before, minus `step_s`. `joined_8_step_s` is the median step of all twelve
afterward: where they share few cores, most of `join_8_stop_s` is this larger step. `transfer_gb_per_s` is measured
between two processes on loopback that do not share memory, from the sender's first look at its state to the receiver's
checked copy. The last line is JSON, with null for what was left out; if the benchmark is stopped, with what it has so
far. No round begins that would probably end after --seconds.

    python benchmarks/join.py [--mb 500] [--rounds 3] [--seconds 240] [--only transfer]"""

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
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.jobs import SCRIPTS, full_generation
from benchmarks.last_line import last_line
from everstep.engine.fixed_world import Fixed
from everstep.engine.inlet import Inlet
from everstep.engine.parcel import Outgoing
from everstep.engine.state_routes import find_routes
from everstep.engine.transfer import receive_state, send_state
from everstep.testing import Cluster

WORKERS, LAYERS = 4, 8
TRANSFERS = 7
TENSORS = 50
USUAL_STEPS, STEPS_AFTER = 8, 3


@dataclass(kw_only=True)
class Measured:
    """So far."""

    rates: list[float] = field(default_factory=list)  # GB/s of a transfer
    steps: list[float] = field(default_factory=list)  # seconds before each join
    stops: dict[int, list[float]] = field(default_factory=lambda: {1: [], 8: []})  # by number of newcomers
    joined: dict[int, list[float]] = field(default_factory=lambda: {1: [], 8: []})  # seconds of a step with them

    def report(self) -> dict[str, float | None]:
        return {
            "step_s": median(self.steps),
            "join_stop_s": median(self.stops[1]),
            "join_8_stop_s": median(self.stops[8]),
            "joined_8_step_s": median(self.joined[8]),
            "transfer_gb_per_s": median(self.rates),
        }


def transfer_worker(size_mb: int) -> None:
    torch.set_num_threads(1)
    fixed = Fixed("127.0.0.1")  # holds rank 0's store, which the other may still read when rank 0's group is formed
    group = fixed.next_group(0)
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
    try:
        said = [child.communicate()[0] for child in children]
    finally:
        for child in children:
            child.kill()
    if any(child.returncode for child in children):
        raise SystemExit("the transfer failed")
    return [json.loads(line) for line in said[1].splitlines()]


def time_join(size_mb: int, newcomers: int) -> tuple[float, float, float]:
    """The usual step, how long the join stopped the workers that were there before, and the usual step after it."""
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
        cluster.wait("step.committed", worker="w0", step=last + STEPS_AFTER)
        after = [each for each in commits(cluster, "w0") if each[0] >= last]
    usual = usual_step_s(before[-USUAL_STEPS:])
    return usual, max(gaps) - usual, usual_step_s(after)


def usual_step_s(times: Sequence[tuple[int, float]]) -> float:
    return statistics.median(later - earlier for (_, earlier), (_, later) in pairwise(times))


def commits(cluster: Cluster, worker: str) -> list[tuple[int, float]]:
    return [(event["step"], event["t"]) for event in cluster.events("step.committed", worker=worker)]


def median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 3) if values else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mb", type=int, default=500, help="size of the state")
    parser.add_argument("--rounds", type=int, default=3, help="number of jobs of each kind")
    parser.add_argument("--seconds", type=float, default=240.0, help="time for all rounds; the first one always runs")
    parser.add_argument("--only", choices=["transfer", "1", "8"], help="measure this part only")
    args = parser.parse_args()
    if "RANK" in os.environ:
        transfer_worker(args.mb)
        return
    measured = Measured()
    with last_line(measured.report):
        measure(measured, args)


def measure(measured: Measured, args: argparse.Namespace) -> None:
    began = time.monotonic()
    if args.only in (None, "transfer"):
        measured.rates += [args.mb / 1000 / seconds for seconds in time_transfers(args.mb)]
        print(f"{args.mb} MB over loopback: {median(measured.rates)} GB/s, best {max(measured.rates):.2f}", flush=True)
    kinds = [newcomers for newcomers in measured.stops if args.only in (None, str(newcomers))]
    for number in range(args.rounds if kinds else 0):
        spent_s = time.monotonic() - began
        if number and spent_s * (number + 1) / number > args.seconds:
            print(f"no further round: {number} took {spent_s:.0f} s", flush=True)
            break
        for newcomers in kinds:
            step_s, stop_s, joined_s = time_join(args.mb, newcomers)
            measured.steps.append(step_s)
            measured.stops[newcomers].append(stop_s)
            measured.joined[newcomers].append(joined_s)
            print(
                f"{newcomers} joined: a step took {step_s:.3f} s, the join stopped for {stop_s:.3f} s; "
                f"with all, a step takes {joined_s:.3f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
