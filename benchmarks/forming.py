"""How long a group of real processes takes to form on this machine: the basis for `everstep.engine.group.form_s`.

python benchmarks/forming.py [--sizes 16 32 64 128] [--rounds 3] [--nodes 1]
last line JSON: {"form_s": {"16": …, "64": …}}, the median of the slowest member's seconds. With `--nodes 8`, only
workers with the same rank modulo 8 find each other's memory, as if the others were on different machines."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from everstep.addresses import listen
from everstep.engine import shared_memory
from everstep.engine.group import Group
from everstep.engine.tcp_store import serve_store
from everstep.engine.world import World

PATIENCE_S = 300.0


def member(world: World, num_nodes: int, out: int) -> None:
    torch.set_num_threads(1)
    here = shared_memory.machine()
    shared_memory.machine = lambda: f"{here} {world.rank % num_nodes}"
    started = time.perf_counter()
    group = Group.form(world, "127.0.0.1", "benchmark", timeout_s=PATIENCE_S)
    formed_s = time.perf_counter() - started
    group.gather(b"here")
    os.write(out, json.dumps([formed_s, time.perf_counter() - started]).encode() + b"\n")
    group.gather(b"done")


def measure(size: int, num_nodes: int, generation: int) -> tuple[float, float]:
    """The slowest member's times: until it was formed, and until it had heard from all."""
    ours, theirs = os.pipe()
    port_in, port_out = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        os.close(theirs)  # only the members write to it, so the pipe ends when all of them have ended
        server = serve_store(listen("127.0.0.1"), PATIENCE_S)
        os.write(port_out, f"{server.port}\n".encode())
        time.sleep(2 * PATIENCE_S)
        os._exit(0)
    port = int(os.read(port_in, 100))
    pids = []
    for rank in range(size):
        pids.append(os.fork())
        if pids[-1] == 0:
            code = 1
            try:
                world = World(generation=generation, rank=rank, size=size, store_address="127.0.0.1", store_port=port)
                member(world, num_nodes, theirs)
                code = 0
            finally:
                os._exit(code)
    os.close(theirs)
    with os.fdopen(ours) as lines:
        told = [json.loads(line) for line in lines]
    failed = [pid for pid in pids if os.waitpid(pid, 0)[1]]
    os.kill(keeper, 9)
    os.waitpid(keeper, 0)
    os.close(port_in)
    os.close(port_out)
    if failed or len(told) < size:
        sys.exit(f"{len(failed)} of {size} members failed")
    return max(each[0] for each in told), max(each[1] for each in told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 32, 64, 128])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=1)
    args = parser.parse_args()
    found = {}
    for size in args.sizes:
        times = [measure(size, args.nodes, number) for number in range(1, args.rounds + 1)]
        found[str(size)] = round(statistics.median(formed for formed, _ in times), 2)
        heard = statistics.median(heard for _, heard in times)
        print(f"{size} workers: formed in {found[str(size)]} s, all heard from all after {heard:.2f} s", flush=True)
    print(json.dumps({"form_s": found}))


if __name__ == "__main__":
    main()
