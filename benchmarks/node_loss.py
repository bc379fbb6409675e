"""One of three hosts is lost: seconds to the next committed step of the others, Everstep and torchrun.

Each host has a network of its own (needs root) and one worker. "Crash": all processes of the host are killed at once
and its link goes down. "Cut": its link goes down without notice, and all processes live on. What counts is the first
step of the other two. Both sides run with their default settings; torchrun with --nnodes 2:3, its c10d rendezvous on
a host that is not lost, and a script whose collectives give up after 60 s instead of 30 minutes. A round that has not
recovered after 120 s counts as never: null. The last line is JSON.

    python benchmarks/node_loss.py [--rounds 3] [--torchrun-rounds 1]"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.jobs import SCRIPTS, Torchrun, TorchrunNode, full_generation, until, wait_for_random_phase
from everstep.testing import Cluster, can_make_hosts
from everstep.testing.network import Network

HOSTS = 3
VICTIM = 3
PORT = 29400
NEVER_S = 120.0
READY_S = 120.0
CRASH, CUT = "crash", "cut"
WAYS = (CRASH, CUT)

Taken = float | None  # seconds; None: never


def everstep_losses(way: str, rounds: int) -> list[Taken]:
    """The lost host comes back each time before the next round."""
    taken: list[Taken] = []
    args = ["--workers", str(HOSTS), "--micro-batches", str(HOSTS)]
    script = SCRIPTS / "everstep_job.py"
    with Cluster(script, args, workers=HOSTS, hosts=HOSTS, max_restarts=10_000) as cluster:
        for _ in range(rounds):
            full = full_generation(cluster, HOSTS)
            wait_for_random_phase()
            lost_at = time.monotonic()
            cluster.hosts.crash(VICTIM) if way == CRASH else cluster.hosts.cut(VICTIM)
            after = {"generation": lambda number, full=full: number > full, "size": HOSTS - 1}
            found = until(lambda: bool(cluster.events("step.committed", **after)), NEVER_S)  # noqa: B023
            taken.append(cluster.events("step.committed", **after)[0]["t"] - lost_at if found else None)
            cluster.hosts.mend(VICTIM)
            if way == CRASH:
                cluster.add(host=VICTIM)
    return taken


def torchrun_losses(way: str, rounds: int) -> list[Taken]:
    """A new job each time: torchrun is not reliable after a loss."""
    return [_torchrun_loss(way) for _ in range(rounds)]


def _torchrun_loss(way: str) -> Taken:
    with Network(HOSTS) as network:
        try:
            with Torchrun(*(_torchrun_node(network, host) for host in range(1, HOSTS + 1))) as job:
                if not until(lambda: len(job.steps(size=HOSTS)) >= 5 * HOSTS, READY_S):
                    raise SystemExit(f"torchrun's workers did not start in {READY_S:.0f} s")
                wait_for_random_phase()
                lost_at = time.monotonic()
                network.crash(VICTIM) if way == CRASH else network.cut(VICTIM)
                found = until(lambda: bool(job.steps(size=HOSTS - 1)), NEVER_S)
                return job.steps(size=HOSTS - 1)[0]["t"] - lost_at if found else None
        finally:
            for host in range(1, HOSTS + 1):
                network.kill_all(host)


def _torchrun_node(network: Network, host: int) -> TorchrunNode:
    """All hosts share one name here, so torchrun needs the addresses that it would find by name."""
    options = {
        "--nnodes": f"{HOSTS - 1}:{HOSTS}",
        "--nproc-per-node": "1",
        "--max-restarts": "100",
        "--rdzv-backend": "c10d",
        "--rdzv-endpoint": f"{network.address(1)}:{PORT}",
        "--rdzv-id": "benchmark",
        "--rdzv-conf": f"is_host={int(host == 1)}",
        "--local-addr": network.address(host),
    }
    flat = [part for option in options.items() for part in option]
    return TorchrunNode(options=flat, inside=network.inside(host), env={"GLOO_SOCKET_IFNAME": "eth0"})


# --- the table ----------------------------------------------------------------------------------------


def median(taken: Sequence[Taken]) -> Taken:
    """Never is longer than any time."""
    found = statistics.median_high([each if each is not None else float("inf") for each in taken] or [float("inf")])
    return round(found, 3) if found < float("inf") else None


def row(name: str, taken: Sequence[Taken]) -> str:
    rounds = ", ".join("never" if each is None else f"{each:.2f}" for each in taken)
    middle = median(taken)
    return f"{name:16s} {'-' if not taken else 'never' if middle is None else f'{middle:.2f}':>8s}   {rounds}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--torchrun-rounds", type=int, default=1)
    args = parser.parse_args()
    if not can_make_hosts():
        print("not measured: separate hosts need root, iproute2 and nftables")
        print(json.dumps(dict.fromkeys(("crash_s", "cut_s", "torchrun_crash_s", "torchrun_cut_s"))))
        return
    ours = {way: everstep_losses(way, args.rounds) for way in WAYS}
    theirs = {way: torchrun_losses(way, args.torchrun_rounds) for way in WAYS}
    print(f"{'seconds':16s} {'median':>8s}   rounds")
    for name, taken in (("Everstep", ours), ("torchrun", theirs)):
        for way in WAYS:
            print(row(f"{name}, {way}", taken[way]))
    found = {f"{way}_s": median(ours[way]) for way in WAYS}
    print(json.dumps(found | {f"torchrun_{way}_s": median(theirs[way]) for way in WAYS}))


if __name__ == "__main__":
    main()
