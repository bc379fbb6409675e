"""Time from kill -9 of one of four workers to the next committed step: Everstep, torchrun, nvidia-resiliency-ext.

Workers train a 20 MB model with steps of 50 ms (sleep simulates device time). One of them is killed at a random phase
of a step, again and again; each time all four are waited for before the next kill. What counts is the first step that
the survivors commit in the new generation (torchrun: the first step of the restarted workers), never one that was on
its way. torchrun runs at its best: with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1. The last line is JSON, with null for
nvidia-resiliency-ext where `make peers` has not installed it.

    python benchmarks/recovery.py [--kills 20]"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.jobs import (
    SCRIPTS,
    Torchrun,
    TorchrunNode,
    attempt,
    full_generation,
    members,
    until,
    wait_for_random_phase,
)
from benchmarks.peers import peer_python
from everstep.process import Child
from everstep.testing import Cluster
from everstep.testing.tape import Tape

WORKERS = 4
HUNG_S = 60.0


# --- Everstep -----------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Taken:
    """Seconds of each kill."""

    survivors: list[float] = field(default_factory=list)  # to the survivors' next commit
    full: list[float] = field(default_factory=list)  # to the first commit with a replacement, without its script's part
    script: list[float] = field(default_factory=list)  # which is its imports and the building of its model
    hung: int = 0


def everstep_kills(kills: int, micro_batches: int) -> Taken:
    taken = Taken()
    with Cluster(
        SCRIPTS / "everstep_job.py", ["--micro-batches", str(micro_batches)], workers=WORKERS, max_restarts=10_000
    ) as cluster:
        for _ in range(kills):
            full = full_generation(cluster, WORKERS)
            wait_for_random_phase()
            victim = random.choice(members(cluster, full))
            killed = time.monotonic()
            cluster.kill(victim)
            after = {"t": lambda t, killed=killed: t > killed, "generation": lambda g, full=full: g > full}
            if not until(lambda: bool(cluster.events("step.committed", size=WORKERS, **after)), HUNG_S):  # noqa: B023
                taken.hung += 1
                continue
            taken.survivors.append(cluster.events("step.committed", **after)[0]["t"] - killed)
            # Without a generation in between, the replacement joined before the survivors had redone the step.
            (began,) = cluster.events("script.began", t=after["t"])
            (ready,) = cluster.events("script.ready", t=after["t"])
            taken.script.append(ready["t"] - began["t"])
            back = cluster.events("step.committed", size=WORKERS, **after)[0]["t"] - killed
            taken.full.append(back - taken.script[-1])
    return taken


def everstep_laggard(rounds: int) -> list[float]:
    """One worker is a step behind and must be sent 500 MB, while another dies."""
    args = ["--ballast-mb", "480", "--lag-every", "8", "--micro-batches", str(WORKERS)]
    taken = []
    for _ in range(rounds):
        with Cluster(SCRIPTS / "everstep_job.py", args, workers=WORKERS) as cluster:
            dying = cluster.wait("dying", timeout_s=120)
            step = cluster.wait("step.committed", step=dying["step"] + 1, timeout_s=60)
            cluster.wait("transfer.received", worker="w1", t=lambda t: t > dying["t"])  # noqa: B023
            taken.append(step["t"] - dying["t"])
    return taken


# --- all restarted together: torchrun, and Everstep for scripts that do not use its engine ------------


def everstep_restarts(kills: int) -> tuple[list[float], int]:
    with (
        tempfile.TemporaryDirectory(prefix="everstep-bench-", dir="/dev/shm") as directory,
        Cluster(
            SCRIPTS / "ddp_job.py", [f"{directory}/checkpoint.pt"], workers=WORKERS, max_restarts=10_000
        ) as cluster,
    ):
        return restarts(Tape(cluster.directory / "events.jsonl"), kills)


def torchrun_restarts(kills: int) -> tuple[list[float], int]:
    node = TorchrunNode(options=["--standalone", "--nproc-per-node", str(WORKERS), "--max-restarts", "10000"])
    with Torchrun(node) as job:
        return restarts(job.tape, kills)


def restarts(tape: Tape, kills: int) -> tuple[list[float], int]:
    """Kill one worker repeatedly: seconds to the first step after the restart, and how often it never came."""
    taken = []
    for number in range(kills):
        if not until(lambda: len(attempt(tape, number)) >= 5 * WORKERS, 120):  # noqa: B023
            return taken, 1
        wait_for_random_phase()
        victim = random.choice(sorted({int(event["pid"]) for event in attempt(tape, number)}))
        killed = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        if not until(lambda: bool(attempt(tape, number + 1)), HUNG_S):  # noqa: B023
            return taken, 1
        taken.append(attempt(tape, number + 1)[0]["t"] - killed)
    return taken, 0


# --- nvidia-resiliency-ext, where `make peers` has installed it ---------------------------------------


def nvrx_kills(python: str, kills: int) -> tuple[list[float], int]:
    """Its in-process restart with all intervals at 50 ms. It does not replace a lost worker, so each kill needs a new
    job; its first process holds the store and must not be killed."""
    taken = []
    for _ in range(kills):
        with (
            tempfile.TemporaryDirectory(prefix="everstep-bench-", dir="/dev/shm") as directory,
            ExitStack() as running,
        ):
            tape = Tape(Path(directory) / "events.jsonl")
            pids = [running.enter_context(child).pid for child in _start_nvrx(python, Path(directory))]
            if not until(lambda: len(attempt(tape, 0)) >= 5 * WORKERS, 120):  # noqa: B023
                return taken, 1
            wait_for_random_phase()
            killed = time.monotonic()
            os.kill(random.choice(pids[1:]), signal.SIGKILL)
            if not until(lambda: bool(attempt(tape, 1)), HUNG_S):  # noqa: B023
                return taken, 1
            taken.append(attempt(tape, 1)[0]["t"] - killed)
    return taken, 0


def _start_nvrx(python: str, directory: Path) -> list[Child]:
    command = [python, str(SCRIPTS / "nvrx_job.py"), str(directory / "checkpoint.pt"), "--tuned"]
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = {"MASTER_PORT": str(one.getsockname()[1]), "KEYS_PORT": str(other.getsockname()[1])}
    world = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": str(WORKERS), "OMP_NUM_THREADS": "1", **ports}
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    ours = {"PYTHONPATH": path, "EVERSTEP_EVENTS": str(directory / "events.jsonl")}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(WORKERS)]
    return [Child.start(command, env={**os.environ, **world, **ours, **rank}, output=DEVNULL) for rank in ranks]


# --- the table ----------------------------------------------------------------------------------------


def row(name: str, taken: list[float], hung: int) -> str:
    if not taken:
        return f"{name:48s} {'-':>8s} {'-':>8s} {'-':>8s} {0:6d} {hung:5d}"
    return f"{name:48s} {statistics.median(taken):8.3f} {min(taken):8.3f} {max(taken):8.3f} {len(taken):6d} {hung:5d}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip-torchrun", action="store_true")
    parser.add_argument("--nvrx-kills", type=int, default=5)
    args = parser.parse_args()
    random.seed(args.seed)
    nvrx_python = peer_python("nvidia_resiliency_ext")
    # In turns, half of each, so that a change of the machine's load affects all.
    ours, restarted, theirs = Taken(), list[float](), list[float]()
    restarted_hung = theirs_hung = 0
    for kills in (args.kills - args.kills // 2, args.kills // 2):
        half = everstep_kills(kills, micro_batches=WORKERS)
        ours = Taken(
            survivors=ours.survivors + half.survivors,
            full=ours.full + half.full,
            script=ours.script + half.script,
            hung=ours.hung + half.hung,
        )
        taken, hung = everstep_restarts(kills)
        restarted, restarted_hung = restarted + taken, restarted_hung + hung
        if not args.skip_torchrun:
            taken, hung = torchrun_restarts(kills)
            theirs, theirs_hung = theirs + taken, theirs_hung + hung
    fine = everstep_kills(max(3, args.kills // 4), micro_batches=2 * WORKERS)
    laggard = everstep_laggard(3)
    print(
        f"{'seconds from kill -9 to the next commit':48s} "
        f"{'median':>8s} {'best':>8s} {'worst':>8s} {'kills':>6s} {'hung':>5s}"
    )
    print(row("Everstep, survivors (4 micro-batches of 50 ms)", ours.survivors, ours.hung))
    print(row("Everstep, survivors (8 micro-batches of 25 ms)", fine.survivors, fine.hung))
    print(row("Everstep, a laggard is sent 500 MB", laggard, 0))
    print(row("Everstep, full strength without the script's part", ours.full, ours.hung))
    print(row("    the script's part: imports, building the model", ours.script, 0))
    print(row("Everstep, classic restart of a DDP script", restarted, restarted_hung))
    print(row("torchrun, store sharing off", theirs, theirs_hung))
    nvrx, nvrx_hung = nvrx_kills(nvrx_python, args.nvrx_kills) if nvrx_python else ([], None)
    if nvrx_hung is not None:
        print(row("nvidia-resiliency-ext, in-process, tuned", nvrx, nvrx_hung))
    print(
        json.dumps(
            {
                "survivors_s": _median(ours.survivors),
                "survivors_max_s": round(max(ours.survivors), 4),
                "laggard_s": _median(laggard),
                "full_strength_s": _median(ours.full),
                "script_s": _median(ours.script),
                "restart_s": _median(restarted),
                "torchrun_s": _median(theirs),
                "hung": ours.hung + fine.hung + restarted_hung,
                "torchrun_hung": theirs_hung,
                "nvrx_s": _median(nvrx),
                "nvrx_hung": nvrx_hung,
            }
        )
    )


def _median(taken: list[float]) -> float | None:
    return round(statistics.median(taken), 4) if taken else None


if __name__ == "__main__":
    main()
