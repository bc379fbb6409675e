"""How fast a leader's state reaches a peer over loopback: encoded, sent, received aside, checked on both sides.

python benchmarks/transfer.py [--mb 500]        last line JSON: {"gb_per_s": …}"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from everstep.engine.fixed_world import Fixed
from everstep.engine.transfer import receive_state, send_state

ROUNDS = 7


def worker(size_mb: int) -> None:
    torch.set_num_threads(1)
    membership = Fixed("127.0.0.1")
    group = membership.next_group(0)
    numel = (size_mb << 20) // 4 // 50
    state = {"weights": [torch.ones(numel) for _ in range(50)], "small": [torch.tensor(float(n)) for n in range(100)]}
    taken = []
    for _ in range(ROUNDS):
        group.gather(b"ready")
        started = time.perf_counter()
        if group.world.rank == 0:
            send_state(state, group, [1], "w0")
        else:
            received = receive_state(group, 0, "w1")
            taken.append(time.perf_counter() - started)
            assert len(received["weights"]) == 50
    if taken:
        rates = sorted((size_mb << 20) / 1e9 / seconds for seconds in taken)
        print(f"{size_mb} MB in {statistics.median(taken):.3f} s (best {min(taken):.3f} s), checked on both sides")
        print(json.dumps({"gb_per_s": round(statistics.median(rates), 2), "best_gb_per_s": round(rates[-1], 2)}))
    group.gather(b"done")
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mb", type=int, default=500)
    args = parser.parse_args()
    if "RANK" in os.environ:
        worker(args.mb)
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    children = [
        subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, **world, "RANK": str(rank)}) for rank in (0, 1)
    ]
    sys.exit(max(child.wait() for child in children))


if __name__ == "__main__":
    main()
