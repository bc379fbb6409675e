"""Time from kill -9 of one of four workers to the next committed step: Everstep, torchrun, nvidia-resiliency-ext.

Workers train a 20 MB model with steps of 50 ms (sleep simulates device time). One of them is killed at a random phase
of a step, again and again; the next kill comes after all four train again. What counts is the first step that the
survivors commit in the new generation (torchrun: the first step of the restarted workers), never one that was already
under way. A kill that torchrun has not recovered from in 60 s (--hung-s) counts as hung and as 60 s: it took at least
that. The last line is JSON, with null for what was left out or is not installed; if the benchmark is stopped, with what
it has so far. The systems take turns, a few kills at a time; no turn begins that would probably end after --seconds.

`overhead_s` is what a kill costs beyond the work: the time to the next commit, minus what the same micro-batches take
with one worker fewer. In each turn, before the kills, three workers that train undisturbed are timed. From their step
time, the time that survivors had computed before the kill is subtracted, at most that of their own micro-batches.

On the CPU, torchrun runs at its best, with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, and nvidia-resiliency-ext runs if
`make peers` has installed it.

With --device cuda, or with --backends, Everstep runs once for each backend with 20 and 200 MB, and torchrun with DDP
over NCCL and 20 MB: `torchrun` with all its default settings; `torchrun_short` at its best, with collectives that time
out after 10 s, without the watchdog's pauses, and with its store not shared. `sum_200mb_s` is the undisturbed sum of
the first backend's 200 MB job: three workers take 20 steps before the fourth joins, and each step counts from the end
of the last worker's backward sleep to its commit. Workers may share a GPU; MPS stays off, because with it a kill ends
the other workers too. The JSON is printed after each row.

    python benchmarks/recovery.py [--kills 20] [--seconds 240]
    python benchmarks/recovery.py --device cuda [--kills 10] [--torchrun-kills 5] [--only nccl]"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.kills import (
    HUNG_S,
    WORKERS,
    Taken,
    everstep_kills,
    everstep_laggard,
    everstep_restarts,
    median,
    nvrx_kills,
    torchrun_restarts,
    undisturbed_step_s,
)
from benchmarks.last_line import last_line
from benchmarks.peers import peer_python
from everstep import env
from everstep.engine.backend import Backend

SIZES = {"20mb": 800, "200mb": 2500}  # width of 8 layers of float32
NO_MPS = {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}  # a process that finds no daemon here runs without MPS
AS_IT_COMES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0"}
AT_ITS_BEST = {
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1",  # otherwise the watchdog sleeps for a minute after an error
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_PROPAGATE_ERROR": "0",
}
SHORT_S = 10
KILLS_A_TURN = 5

HEADER = (
    f"{'seconds from kill -9 to the next commit':48s} "
    f"{'median':>8s} {'best':>8s} {'worst':>8s} {'kills':>6s} {'hung':>5s}"
)


def row(name: str, taken: Sequence[float], hung: int) -> str:
    if not taken:
        return f"{name:48s} {'-':>8s} {'-':>8s} {'-':>8s} {0:6d} {hung:5d}"
    return f"{name:48s} {statistics.median(taken):8.3f} {min(taken):8.3f} {max(taken):8.3f} {len(taken):6d} {hung:5d}"


# --- on the CPU: all ways to restart ------------------------------------------------------------------


@dataclass(kw_only=True)
class Systems:
    """What was measured so far."""

    ours: Taken = field(default_factory=Taken)
    fine: Taken = field(default_factory=Taken)
    restarted: Taken = field(default_factory=Taken)
    torchrun: Taken = field(default_factory=Taken)
    nvrx: Taken | None = None
    laggard: list[float] = field(default_factory=list)

    def rows(self) -> list[str]:
        ours, fine, restarted, torchrun = self.ours, self.fine, self.restarted, self.torchrun
        rows = [
            row("Everstep, survivors (4 micro-batches of 50 ms)", ours.survivors, ours.hung),
            row("    of that, beyond the remaining work", ours.overheads, 0),
            row("Everstep, survivors (8 micro-batches of 25 ms)", fine.survivors, fine.hung),
            row("Everstep, a laggard is sent 500 MB", self.laggard, 0),
            row("Everstep, full strength without the script's part", ours.full, ours.hung),
            row("    the script's part: imports, building the model", ours.script, 0),
            row("Everstep, classic restart of a DDP script", restarted.survivors, restarted.hung),
            row("torchrun, store sharing off", torchrun.survivors, torchrun.hung),
        ]
        if self.nvrx is not None:
            rows.append(row("nvidia-resiliency-ext, in-process, tuned", self.nvrx.survivors, self.nvrx.hung))
        return rows

    def report(self) -> dict[str, float | None]:
        ours, nvrx = self.ours, self.nvrx
        return {
            "survivors_s": median(ours.survivors),
            "survivors_max_s": round(max(ours.survivors), 4) if ours.survivors else None,
            "overhead_s": median(ours.overheads),
            "laggard_s": median(self.laggard),
            "full_strength_s": median(ours.full),
            "script_s": median(ours.script),
            "restart_s": median(self.restarted.survivors),
            "torchrun_s": median(self.torchrun.survivors),
            "hung": ours.hung + self.fine.hung + self.restarted.hung,
            "torchrun_hung": self.torchrun.hung,
            "nvrx_s": median(nvrx.survivors) if nvrx is not None else None,
            "nvrx_hung": nvrx.hung if nvrx is not None else None,
        }


def compare_systems(args: argparse.Namespace) -> None:
    systems = Systems()
    with last_line(systems.report):
        measure_systems(systems, args)
        print("\n".join([HEADER, *systems.rows()]), flush=True)


def measure_systems(systems: Systems, args: argparse.Namespace) -> None:
    """In turns, so that a change of the machine's load affects all systems."""
    began, job = time.monotonic(), ["--micro-batches", str(WORKERS)]
    nvrx_python = peer_python("nvidia_resiliency_ext")
    num_turns = -(-args.kills // KILLS_A_TURN)
    for turn in range(num_turns):
        turn_began, kills = time.monotonic(), min(KILLS_A_TURN, args.kills - turn * KILLS_A_TURN)
        smaller_step_s = undisturbed_step_s(job, WORKERS - 1)
        everstep_kills(systems.ours, kills, job, smaller_step_s=smaller_step_s)
        print(row(f"turn {turn + 1}: Everstep, survivors", systems.ours.survivors[-kills:], systems.ours.hung))
        print(row("    full strength", systems.ours.full[-kills:], systems.ours.hung), flush=True)
        everstep_restarts(systems.restarted, -(-kills // 2))
        print(row("    classic restart", systems.restarted.survivors, systems.restarted.hung), flush=True)
        if not args.skip_torchrun:
            torchrun_restarts(systems.torchrun, -(-kills // 2), hung_s=args.hung_s)
            print(row("    torchrun", systems.torchrun.survivors, systems.torchrun.hung), flush=True)
        turn_s = time.monotonic() - turn_began
        if turn == 0:
            everstep_kills(systems.fine, kills, ["--micro-batches", str(2 * WORKERS)])
            print(row("    smaller micro-batches", systems.fine.survivors, systems.fine.hung), flush=True)
            systems.laggard += everstep_laggard(3)
            print(row("    a laggard", systems.laggard, 0), flush=True)
            if nvrx_python:
                systems.nvrx = nvrx_kills(nvrx_python, args.nvrx_kills)
                print(row("    nvidia-resiliency-ext", systems.nvrx.survivors, systems.nvrx.hung), flush=True)
        spent_s = time.monotonic() - began
        if turn + 1 < num_turns and spent_s + turn_s > args.seconds:
            print(f"no further turn: the last one took {turn_s:.0f} s, all of it {spent_s:.0f} s", flush=True)
            return


# --- by the backend that carries the gradients, on GPUs -----------------------------------------------

Part = Callable[[Taken], None]


def compare_backends(args: argparse.Namespace) -> None:
    results: dict[str, Taken | None] = {}
    parts = backend_parts(args)
    print(HEADER, flush=True)

    def report() -> dict[str, float | None]:
        return report_backends(args.backends, {**dict.fromkeys(parts), **results})

    with last_line(report):
        for name, run in parts.items():
            if args.only not in name:
                continue
            results[name] = taken = Taken()
            try:
                run(taken)
            except (Exception, SystemExit):  # measure the other rows anyway; this one counts as hung
                traceback.print_exc()
                taken.hung += 1
            print(row(name, taken.survivors, taken.hung), flush=True)
            if taken.sums:
                print(row("    its undisturbed sum by three workers", taken.sums, 0))
            print(json.dumps(report()), flush=True)


def backend_parts(args: argparse.Namespace) -> dict[str, Part]:
    device = ["--device", args.device]
    parts: dict[str, Part] = {}
    for size, width in SIZES.items():
        for backend in args.backends:
            job = [*device, "--workers", str(WORKERS), "--micro-batches", str(WORKERS), "--width", str(width)]
            wanted = {env.BACKEND: backend, **NO_MPS}
            parts[f"{backend}_{size}"] = partial(
                everstep_kills, kills=args.kills, args=job, env=wanted, times_sums=True
            )
    for name, more, wanted in (
        ("torchrun", [], AS_IT_COMES),
        ("torchrun_short", ["--timeout-s", str(SHORT_S)], AT_ITS_BEST),
    ):
        parts[name] = partial(
            torchrun_restarts,
            kills=args.torchrun_kills,
            args=[*device, *more],
            env={**wanted, **NO_MPS},
            hung_s=args.hung_s,
        )
    return parts


def report_backends(backends: Sequence[str], results: Mapping[str, Taken | None]) -> dict[str, float | None]:
    """By part; None: it was left out, or has not run yet."""

    def hung(names: Sequence[str]) -> int | None:
        found = [taken.hung for name in names if (taken := results.get(name)) is not None]
        return sum(found) if found else None

    report: dict[str, float | None] = {}
    ours = [f"{backend}_{size}" for backend in backends for size in SIZES]
    theirs = ["torchrun", "torchrun_short"]
    for name in (*ours, *theirs):
        taken = results.get(name)
        report[f"{name.replace('-', '_')}_s"] = median(taken.survivors) if taken is not None else None
        if name == f"{backends[0]}_200mb":
            report["sum_200mb_s"] = median(taken.sums) if taken is not None else None
    return report | {"hung": hung(ours), "torchrun_hung": hung(theirs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, help="kills for each Everstep row: 20, or 10 for each backend")
    parser.add_argument("--seconds", type=float, default=240.0, help="time on the CPU; the first turn always runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip-torchrun", action="store_true", help="on the CPU; see --only for the rows by backend")
    parser.add_argument("--nvrx-kills", type=int, default=5)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--backends", nargs="+", choices=[each.value for each in Backend], help="with --device cuda: nccl gloo"
    )
    parser.add_argument(
        "--torchrun-kills", type=int, default=5, help="kills for each torchrun row, in the comparison by backend"
    )
    parser.add_argument("--hung-s", type=float, default=HUNG_S, help="wait this long for torchrun after a kill")
    parser.add_argument(
        "--only", default="", help="by backend: measure only rows that contain this text, such as nccl_200mb"
    )
    args = parser.parse_args()
    random.seed(args.seed)
    if args.device == "cuda" and args.backends is None:
        args.backends = [Backend.NCCL.value, Backend.GLOO.value]
    args.kills = args.kills or (10 if args.backends else 20)
    compare_backends(args) if args.backends else compare_systems(args)


if __name__ == "__main__":
    main()
