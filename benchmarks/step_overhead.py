"""What a step costs over torch's DistributedDataParallel: fast and exact, side by side in the same processes.

Workers train copies of one model, in turns: a round of steps with plain DDP (no_sync accumulation where a worker has
several micro-batches), one with `fast`, one with `exact`, in rotating order; each round is compared with the DDP round
of the same turn. The last line is JSON: ratios of the medians with as many micro-batches as workers; null for what was
left out or failed.

Over gloo, two workers train linear layers, with as many micro-batches as workers, with more, and with an odd number.

With --backend nccl, 2 workers and then 4 train a transformer of 100 M parameters in bfloat16 (compute) and linear
layers with 200 MB of gradients and a tiny batch (comm), each with one micro-batch and the same fused optimizer, against
DDP over NCCL with default settings and gradient_as_bucket_view=True. The JSON has the worse ratio of 2 and 4 workers.
DDP also runs against itself: `aa_spread` is the largest difference of that ratio from 1; do not trust smaller
differences. `exact` alone uses deterministic kernels, as it does in a job. Workers that share a GPU run under MPS, if
it can be started. --backend stand-in tries the same with small models on the CPU.

    python benchmarks/step_overhead.py [--rounds 30] [--device cpu|cuda]
    python benchmarks/step_overhead.py --device cuda --backend nccl [--workers 2] [--only compute]"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.loads import COMMUNICATION, COMPUTE, ON_DEVICE, OVER_GLOO, Load
from benchmarks.mps import shared_gpu
from benchmarks.scripts.gpus import own_device
from benchmarks.statistics_of_ratios import paired_ratio
from everstep import env
from everstep.engine.backend import Backend
from everstep.engine.communicator import tune_nccl
from everstep.engine.fixed_world import Fixed
from everstep.engine.step import Engine
from everstep.ipc.progress_page import ProgressPage
from everstep.native import ElasticTrainer

GLOO, NCCL = Backend.GLOO.value, Backend.NCCL.value
EACH_ONE = "V = W"
DDP, DDP_AGAIN, FAST, EXACT = "ddp", "ddp again", "fast", "exact"
AA_SPREAD = "aa_spread"
LOOK_S = 0.1

Step = Callable[[int], None]


# --- a worker -----------------------------------------------------------------------------------------


def plain_ddp(load: Load, model: nn.Module, batches: Mapping[int, torch.Tensor], *, is_view: bool) -> Step:
    rank, size = dist.get_rank(), dist.get_world_size()
    ddp = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=is_view)
    optimizer = load.optimizer(ddp.parameters())
    mine = list(range(rank * len(batches) // size, (rank + 1) * len(batches) // size))

    def step(_: int) -> None:
        optimizer.zero_grad()
        for micro_batch in mine:
            with contextlib.nullcontext() if micro_batch == mine[-1] else ddp.no_sync():
                ddp(batches[micro_batch]).backward()
        optimizer.step()

    return step


def elastic(load: Load, model: nn.Module, batches: Mapping[int, torch.Tensor], *, reduce: str, purpose: str) -> Step:
    engine = Engine(lambda board, closed: Fixed("127.0.0.1", purpose), ProgressPage())
    trainer = ElasticTrainer(model, micro_batches=len(batches), reduce=reduce, engine=engine)
    optimizer = trainer.prepare(load.optimizer(model.parameters()))

    def step(_: int) -> None:
        target = trainer.num_steps + 1
        while trainer.num_steps < target:
            micro_batch = engine.next_micro_batch()
            with trainer.step():
                optimizer.zero_grad()
                model(batches[micro_batch.index]).backward()
                optimizer.step()

    return step


class Stopwatch:
    """Seconds per step of each round, and processor seconds per step of all threads of this worker."""

    def __init__(self, systems: Mapping[str, Step], device: torch.device, words: dist.ProcessGroup) -> None:
        self.times: dict[str, list[float]] = {name: [] for name in systems}
        self.processor: dict[str, list[float]] = {name: [] for name in systems}
        self._systems, self._device, self._words = systems, device, words

    def measure(self, rounds: int, steps: int, *, are_all_deterministic: bool) -> None:
        names = list(self._systems)
        for turn in range(-1, rounds):  # the first turn warms up
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                if self._device.type == "cuda":
                    torch.use_deterministic_algorithms(are_all_deterministic or name == EXACT)
                self._round(name, max(2, steps) if turn < 0 else steps, counts=turn >= 0)

    def _round(self, name: str, steps: int, *, counts: bool) -> None:
        dist.barrier(self._words)
        started, worked = time.perf_counter(), time.process_time()
        for number in range(steps):
            self._systems[name](number)
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        if counts:
            self.times[name].append((time.perf_counter() - started) / steps)
            self.processor[name].append((time.process_time() - worked) / steps)


def worker(args: argparse.Namespace, report: Path) -> None:
    torch.set_num_threads(1)
    tune_nccl()  # before DDP's first communicator; all_reduce is as fast with it as without
    device = own_device(args.device, int(os.environ["WORLD_SIZE"]))
    dist.init_process_group(NCCL if args.backend == NCCL else GLOO)
    words = dist.new_group(backend=GLOO)
    loads = (OVER_GLOO if args.backend == GLOO else ON_DEVICE)[args.device]
    for kind, load in loads.items():
        for label, num_micro_batches in rows(args.backend).items():
            if args.only in f"{kind} {label}":
                found = measure_row(args, kind, label, load, num_micro_batches, device, words)
                if dist.get_rank() == 0 and label == EACH_ONE:
                    with report.open("a") as file:
                        file.write(json.dumps(found) + "\n")
    dist.barrier(words)
    os._exit(0)  # engines of a benchmark have no end of their own


def rows(backend: str) -> dict[str, int]:
    """Micro-batches by label."""
    size = dist.get_world_size()
    if backend != GLOO:
        return {EACH_ONE: size}
    return {EACH_ONE: size, "V = 4 W": 4 * size, "W does not divide V": size + 1}


def measure_row(
    args: argparse.Namespace,
    kind: str,
    label: str,
    load: Load,
    num_micro_batches: int,
    device: torch.device,
    words: dist.ProcessGroup,
) -> dict[str, float]:
    is_on_device = args.backend != GLOO
    batches = {micro_batch: load.batch(micro_batch, device) for micro_batch in range(num_micro_batches)}
    purpose = f"{kind}{num_micro_batches}"
    systems = {
        DDP: plain_ddp(load, load.build(device), batches, is_view=is_on_device),
        FAST: elastic(load, load.build(device), batches, reduce=FAST, purpose=f"f{purpose}"),
        EXACT: elastic(load, load.build(device), batches, reduce=EXACT, purpose=f"e{purpose}"),
    }
    if is_on_device:
        systems[DDP_AGAIN] = plain_ddp(load, load.build(device), batches, is_view=True)
    watch = Stopwatch(systems, device, words)
    steps = max(1, load.steps * dist.get_world_size() // num_micro_batches)
    watch.measure(args.rounds, steps, are_all_deterministic=not is_on_device)
    ratios = {name: paired_ratio(watch.times[name], watch.times[DDP]) for name in systems if name != DDP}
    if dist.get_rank() == 0:
        work = {name: paired_ratio(watch.processor[name], watch.processor[DDP]).median for name in (FAST, EXACT)}
        print(
            f"{dist.get_world_size():7d} {kind:8s} {label:20s} {statistics.median(watch.times[DDP]) * 1e3:8.1f} ms  "
            + "  ".join(f"{name} {ratio}" for name, ratio in ratios.items())
            + f"  processor time: fast {work[FAST]:.3f}, exact {work[EXACT]:.3f}",
            flush=True,
        )
    found = {f"{name}_{kind}": round(ratios[name].median, 4) for name in (FAST, EXACT)}
    return found | ({AA_SPREAD: round(abs(ratios[DDP_AGAIN].median - 1), 4)} if is_on_device else {})


# --- all of them --------------------------------------------------------------------------------------


def run_workers(num_workers: int, report: Path, more: Mapping[str, str]) -> bool:
    """Whether all ended well. The first one that fails ends the others too: over NCCL, they would wait for it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(num_workers)}
    tuning = {"OMP_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    command = [sys.executable, *sys.argv, "--report", str(report)]
    children = [
        subprocess.Popen(command, env={**os.environ, **world, **tuning, **more, "RANK": str(rank)})
        for rank in range(num_workers)
    ]
    try:
        while any(child.poll() is None for child in children) and not any(child.returncode for child in children):
            time.sleep(LOOK_S)
    finally:
        for child in children:
            child.kill()
            child.wait()
    return not any(child.returncode for child in children)


def worst(backend: str, reports: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
    """The largest value of each key; None: it was not measured."""
    names = [f"{name}_{kind}" for kind in (COMPUTE, COMMUNICATION) for name in (FAST, EXACT)]
    prefix = "" if backend == GLOO else f"{backend.replace('-', '_')}_"
    found = {f"{prefix}{name}": [report[name] for report in reports if name in report] for name in names}
    if backend != GLOO:
        found[AA_SPREAD] = [report[AA_SPREAD] for report in reports if AA_SPREAD in report]
    return {name: max(values, default=None) for name, values in found.items()}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--backend", choices=[each.value for each in Backend], default=GLOO)
    parser.add_argument("--workers", type=int, nargs="+", help="one run for each number: 2, or 2 4 if not over gloo")
    parser.add_argument("--only", default="", help="measure only rows that contain this text")
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)  # to a worker: where its ratios go
    args = parser.parse_args()
    wanted = {NCCL: "cuda", Backend.STAND_IN.value: "cpu"}.get(args.backend, args.device)
    if args.device != wanted:
        parser.error(f"--backend {args.backend} needs --device {wanted}")
    args.workers = args.workers or ([2] if args.backend == GLOO else [2, 4])
    return args


def main() -> None:
    args = parsed()
    if args.report:
        worker(args, args.report)
    has_failed = False
    with contextlib.ExitStack() as ending:
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="everstep-bench-")))
        more = {env.BACKEND: args.backend}
        if args.backend == NCCL and torch.cuda.device_count() < max(args.workers):
            more |= ending.enter_context(shared_gpu())
        print(f"workers {'model':8s} {'micro-batches':20s} {'DDP step':>11s}  ratio to DDP, median [95 % interval]")
        sys.stdout.flush()
        for num_workers in args.workers:
            if not run_workers(num_workers, folder / "report.jsonl", more):
                print(f"{num_workers} workers: one of them failed", file=sys.stderr)
                has_failed = True
        found = folder / "report.jsonl"
        reports = [json.loads(line) for line in found.read_text().splitlines()] if found.exists() else []
    print(json.dumps(worst(args.backend, reports)))
    sys.exit(has_failed)


if __name__ == "__main__":
    main()
